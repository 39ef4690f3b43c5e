"""Server-sent events: a stream that ends when its client leaves, and with an error when the answer breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.http.bodies import encode
from hundredfold_gateway.http.presence import ClientGone, while_there

DONE = b"data: [DONE]\n\n"

_LAST_WORDS_S = 1.0


class EventStream(Response):
    """Sends each object of ``objects`` as one event, then ``[DONE]``.

    A client that reads slowly stops the reading of ``objects``: nothing is kept for it here.

    Args:
        objects: The events; raises ``ApiError`` when the answer breaks off.
        held: What the answer holds; let go of in every case.
        cut: Set when the service ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self, objects: AsyncGenerator[Any, None], held: contextlib.AsyncExitStack, cut: asyncio.Event
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]  # nobody knows it yet
        self._objects = objects
        self._held = held
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all, as ASGI wants it."""
        async with self._held, contextlib.aclosing(self._objects):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await while_there(receive, self._cut, self._send_all(send))
            except ClientGone:
                return
            except ApiError as error:  # the service ends, and this reader may be one who does not read
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_S):
                        await _send(send, _frame(error.body()), more=False)

    async def _send_all(self, send: Send) -> None:
        try:
            async for content in self._objects:
                await _send(send, _frame(content), more=True)
        except ApiError as error:
            await _send(send, _frame(error.body()), more=False)  # no [DONE]: the answer is not whole
        else:
            await _send(send, DONE, more=False)


async def _send(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def _frame(content: Any) -> bytes:
    return b"data: " + encode(content) + b"\n\n"
