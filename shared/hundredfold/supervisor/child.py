"""One child process: started, listened to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable

from hundredfold.supervisor.spec import ChildSpec

TAIL_LINES = 20
MAX_LINE_BYTES = 64 * 1024

Sink = Callable[[str, str], None]
"""Takes a child's name and one line of its output."""


class Child:
    """A process that can be started again. It has a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, spec: ChildSpec, sink: Sink) -> None:
        self.spec = spec
        self.ready_once = asyncio.Event()
        """Set when it is ready for the first time; stays set when it crashes."""
        self._sink = sink
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process now."""
        return self._process is not None

    @property
    def last_lines(self) -> list[str]:
        """The end of its output since the last start."""
        return list(self._tail)

    async def run(self) -> int:
        """Start it and wait for its end; returns the exit code, negative for a signal."""
        self._tail.clear()
        self._process = await asyncio.create_subprocess_exec(
            *self.spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **self.spec.environment},
            start_new_session=True,
        )
        reading = asyncio.create_task(self._read(self._process.stdout))
        code = await self._process.wait()
        # What it wrote last says why it ended; but a grandchild may hold the pipe open for ever.
        await asyncio.wait({reading}, timeout=1.0)
        reading.cancel()
        self._process = None
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; SIGKILL goes to all that it started as well."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        pending = b""
        while stream is not None and (chunk := await stream.read(MAX_LINE_BYTES)):
            *lines, pending = (pending + chunk).split(b"\n")
            if len(pending) > MAX_LINE_BYTES:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._take(line)
        if pending:
            self._take(pending)

    def _take(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self._tail.append(text)
        self._sink(self.spec.name, text)
