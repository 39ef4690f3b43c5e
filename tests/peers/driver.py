"""A driver process: started once, then asked for one load after another."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MARK = "PEER "
"""As in drivers/protocol.py, which is no module of ours: it runs in the peers' environments."""


KEPT_WORDS = 400
_ERROR = re.compile(r"\b\w*(?:Error|Exception): ")


class PeerFailed(Exception):
    """A peer could not be started or did not answer; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer found for one load."""

    tokens: int
    seconds: float
    peak_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second, prompts included in the time."""
        return self.tokens / self.seconds


def parse(line: str) -> dict[str, Any] | None:
    """What a line of a driver tells, None for one of its libraries. Raises PeerFailed for a failure."""
    if not line.startswith(MARK):
        return None
    told: dict[str, Any] = json.loads(line[len(MARK) :])
    if "failure" in told:
        raise PeerFailed(told["failure"])
    return told


class Driver:
    """Runs until ``close``. Use from one thread."""

    def __init__(self, interpreter: Path, script: Path, arguments: Sequence[str], limit_s: float) -> None:
        """Start it and wait until it is ready. Raises PeerFailed."""
        self._words: deque[str] = deque(maxlen=KEPT_WORDS)
        self._told: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [str(interpreter), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.versions: Mapping[str, str] = self._next(limit_s)["versions"]
        except BaseException:
            self.close()
            raise

    def ask(self, load: Mapping[str, int], limit_s: float) -> Answer:
        """Run one load. Raises PeerFailed."""
        try:
            _pipe(self._process.stdin).write(json.dumps(load) + "\n")
        except OSError as error:
            raise PeerFailed(f"it has ended: {self._last_words()}") from error
        told = self._next(limit_s)
        return Answer(int(told["tokens"]), float(told["seconds"]), int(told["peak_bytes"]))

    def close(self) -> None:
        """End it and what it started."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _pipe(self._process.stdin).close()
                self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _next(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._told.get(timeout=limit_s)
        except queue.Empty:
            raise PeerFailed(f"no answer within {limit_s:g} s") from None
        if line is None:
            raise PeerFailed(self._last_words())
        told = parse(line)
        if told is None:
            raise PeerFailed(f"an unmarked line: {line}")
        return told

    def _read(self) -> None:
        for line in _pipe(self._process.stdout):
            if line.startswith(MARK):
                self._told.put(line)
            elif line.strip():
                self._words.append(line.strip())
        self._told.put(None)

    def _last_words(self) -> str:
        code = self._process.poll()
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}: {_telling(list(self._words))}"
        return _telling(list(self._words))


def _telling(words: Sequence[str]) -> str:
    """The first error is the cause; later ones say that something failed because of it."""
    errors = [line for line in words if _ERROR.search(line)]
    return (errors[:1] or words[-1:] or ["it ended without a word"])[0][:300]


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise PeerFailed("a pipe is missing")
    return stream
