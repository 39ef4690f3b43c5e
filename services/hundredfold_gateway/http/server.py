"""The HTTP server: uvicorn on sockets of our own, started and stopped by us and not by signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

_MAX_HEADER_BYTES = 64 * 1024
_IDLE_S = 75
_LAST_WORDS_S = 2


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the host's."""
        yield


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, sockets: Sequence[socket.socket], max_connections: int, failed: Callable[[str], None]
) -> AsyncIterator[None]:
    """Answer for as long as the block runs.

    Args:
        app: What answers.
        sockets: Listening; closed at the end.
        max_connections: Connections at once; more get status 503.
        failed: Called with the reason when the server ends by itself.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # the application logs what it answers
        access_log=False,
        server_header=False,
        # A local proxy says who its client is; nobody else is believed.
        proxy_headers=True,
        forwarded_allow_ips="127.0.0.1,::1",
        limit_concurrency=max_connections,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(list(sockets)))

    def ended(done: asyncio.Task[None]) -> None:
        if not server.should_exit and not done.cancelled():
            failed(f"the HTTP server ended: {done.exception()!r}")

    task.add_done_callback(ended)
    try:
        yield
    finally:
        server.should_exit = True
        await task
