"""Runs the rendering process: one request at a time, ended and replaced when it takes too long."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from hundredfold.rpc import RequestError
from hundredfold.telemetry import get_logger

log = get_logger(__name__)

MAX_WAITING = 256
"""Renderings that may wait for their turn."""

_START_S = 20.0
"""Longest that an interpreter may take to start, on a machine that is busy with a model."""

_RENDERER = Path(__file__).with_name("renderer.py")
_UNUSABLE = grpc.StatusCode.FAILED_PRECONDITION
_CODES = {
    "raised": grpc.StatusCode.INVALID_ARGUMENT,
    "failed": grpc.StatusCode.INVALID_ARGUMENT,
    "broken": _UNUSABLE,
    "limit": _UNUSABLE,
}
_WORDS = {
    "raised": "the chat template refuses this chat: ",
    "failed": "the chat template cannot render this chat: ",
    "broken": "the model's chat template cannot be used: ",
    "limit": "the model's chat template was stopped: ",
}


class RenderProcess:
    """The chat templates of the served model, run apart from the door.

    Args:
        templates: Sources by name.
        timeout_s: Longest that one rendering may take.
        max_chars: Longest text that it may make.
    """

    def __init__(self, templates: Mapping[str, str], *, timeout_s: float, max_chars: int) -> None:
        self._templates = dict(templates)
        self._timeout_s = timeout_s
        self._max_chars = max_chars
        self._turn = asyncio.Lock()
        self._turns: set[asyncio.Task[dict[str, str]]] = set()
        self._running: _Child | None = None

    async def start(self) -> None:
        """Start the process ahead of the first chat."""
        async with self._turn:
            await self._child()

    async def close(self) -> None:
        """End the process."""
        for turn in self._turns:
            turn.cancel()
        self._drop()

    async def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The text of a chat.

        Raises:
            RequestError: The template refused the chat or cannot be used, or too many chats wait.
        """
        if len(self._turns) >= MAX_WAITING:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{len(self._turns)} chats wait to be rendered; the limit is {MAX_WAITING}",
                retry_after_s=1.0,
            )
        request = {"template": template, "variables": variables, "max_chars": self._max_chars}
        turn = asyncio.create_task(self._take_turn(json.dumps(request, ensure_ascii=False).encode()))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        # A caller that leaves does not end the rendering: ending the process would cost more than its last
        # moments.
        reply = await asyncio.shield(turn)
        kind = reply.get("error")
        if kind is not None:
            raise RequestError(_CODES[kind], _WORDS[kind] + reply.get("message", ""), field="chat")
        return reply["text"]

    async def _take_turn(self, body: bytes) -> dict[str, str]:
        async with self._turn:
            return await self._ask(body)

    async def _ask(self, body: bytes) -> dict[str, str]:
        try:
            child = await self._child()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.warning("the rendering process cannot be started", error=repr(error))
            raise RequestError(
                grpc.StatusCode.UNAVAILABLE, "chats cannot be rendered now", retry_after_s=1.0
            ) from None
        answered = False
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await child.ask(body)
            answered = True
        except TimeoutError:
            return {"error": "limit", "message": f"it took more than {self._timeout_s:g} s"}
        except (OSError, asyncio.IncompleteReadError) as error:
            log.warning("the rendering process died", error=repr(error))
            return {"error": "limit", "message": "its process died"}
        finally:
            if not answered:  # it may be in the middle of anything
                self._drop()
        return reply

    async def _child(self) -> _Child:
        if self._running is None:
            self._running = await _Child.start(self._templates)
        return self._running

    def _drop(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None


class _Child:
    """One process and the socket to it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, templates: Mapping[str, str]) -> _Child:
        process, ours = _spawn()
        reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
        child = cls(process, reader, writer)
        try:
            async with asyncio.timeout(_START_S):
                await child.ask(json.dumps({"templates": dict(templates)}).encode())
        except BaseException:
            child.end()
            raise
        return child

    async def ask(self, body: bytes) -> dict[str, str]:
        self._send(body)
        await self._writer.drain()
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        reply = json.loads(await self._reader.readexactly(size))
        return {str(key): str(value) for key, value in reply.items()}

    def _send(self, body: bytes) -> None:
        self._writer.write(len(body).to_bytes(4, "big") + body)

    def end(self) -> None:
        self._process.kill()
        self._writer.close()
        # It is dead for certain; only its memory may take a moment to be given back.
        asyncio.get_running_loop().run_in_executor(None, self._process.wait)


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the interpreter; a millisecond. Popen uses vfork and exec, so gRPC's fork handlers do not run."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_RENDERER)],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
