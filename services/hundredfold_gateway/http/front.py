"""The outermost layer: names each request, measures it, and lets no fault of ours out unlogged."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hundredfold.telemetry import extract, get_logger, inject
from hundredfold.telemetry.context import attached
from hundredfold_gateway.metrics import HttpMetrics

log = get_logger(__name__)

REQUEST_ID = b"x-request-id"
STATE = "request_id"
"""Key in the request's state."""

_MAX_ECHO = 1024
_MODEL = re.compile(r"/v1/models/.+")
_GONE = 499
"""Status in the metrics for a client that left before its answer began."""


class Front:
    """Wraps the application.

    Args:
        app: Answers.
        metrics: Where requests are counted.
        routes: Paths that may become a label.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, routes: Sequence[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})[STATE] = request_id.decode("latin-1")
        status: list[int] = []
        route, method, began = self._route(scope["path"]), scope["method"], time.monotonic()
        with self._metrics.active(method), attached(extract(_traceparent(scope))):
            try:
                await self._app(scope, receive, _named(send, request_id, status.append))
            except Exception:
                # The client was told that much already; the reason is for the log.
                log.exception("request failed", route=route, request_id=scope["state"][STATE])
        found = status[0] if status else _GONE
        seconds = time.monotonic() - began
        self._metrics.answered(method, route, found, seconds)
        log.debug("answered", route=route, status=found, seconds=round(seconds, 3))

    def _route(self, path: str) -> str:
        if path in self._routes:
            return path
        return "/v1/models/{model}" if _MODEL.fullmatch(path) else "other"


def trace_metadata() -> Sequence[tuple[str, str]]:
    """What names the running request's trace to the door; empty when its client named none."""
    traceparent = inject()
    return (("traceparent", traceparent),) if traceparent else ()


def _traceparent(scope: Scope) -> str:
    found = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
    return str(found, "latin-1")


def _request_id(scope: Scope) -> bytes:
    """The client's own, whatever it is, else a new one."""
    found = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return found if 0 < len(found) <= _MAX_ECHO else f"req-{secrets.token_hex(12)}".encode()


def _named(send: Send, request_id: bytes, note: Callable[[int], None]) -> Send:
    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            note(message["status"])
            message = {**message, "headers": [*message.get("headers", ()), (REQUEST_ID, request_id)]}
        await send(message)

    return send_named
