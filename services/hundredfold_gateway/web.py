"""The HTTP application: which path goes where, and how refusals look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hundredfold.client import AsyncClient
from hundredfold_gateway.endpoints.generate import Generate
from hundredfold_gateway.endpoints.models import Models
from hundredfold_gateway.endpoints.text import Text
from hundredfold_gateway.errors import SERVER, ApiError
from hundredfold_gateway.gate import Gate
from hundredfold_gateway.http.bodies import json_response
from hundredfold_gateway.http.front import STATE, Front
from hundredfold_gateway.http.presence import ClientGone
from hundredfold_gateway.metrics import CONTENT_TYPE, HttpMetrics
from hundredfold_gateway.settings import GatewaySettings

_CLIENT_GONE = 499


def make_app(
    client: AsyncClient,
    gate: Gate,
    settings: GatewaySettings,
    metrics: HttpMetrics,
    health: Callable[[], tuple[bool, str]],
) -> ASGIApp:
    """The application.

    Args:
        client: Talks to the doors.
        gate: Counts what is in progress.
        settings: What the gateway was told.
        metrics: What it measures.
        health: Whether requests can be taken, and a word for it.
    """
    models = Models(client)
    generate = Generate(client, gate, settings, metrics.service)
    text = Text(client, models, gate, settings)

    async def show_health(request: Request) -> Response:
        ready, state = health()
        return json_response({"status": state}, 200 if ready else 503)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/chat/completions": generate.chat,
        "/v1/completions": generate.completion,
        "/tokenize": text.tokenize,
        "/detokenize": text.detokenize,
    }
    gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/models": models.list_models,
        "/health": show_health,
        "/metrics": show_metrics,
    }
    routes = [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
        Route("/v1/models/{model:path}", models.show_model, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {
        ApiError: _refused,
        HTTPException: _not_there,
        ClientGone: _nobody,
        Exception: _failed,
    }
    return Front(Starlette(routes=routes, exception_handlers=handlers), metrics, [*posts, *gets])


async def _refused(request: Request, error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers())


async def _not_there(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path[:200]}: {error.detail.lower()}"
    refusal = ApiError(error.status_code, message)
    return json_response(refusal.body(), refusal.status, dict(error.headers or {}))


async def _nobody(request: Request, error: ClientGone) -> Response:
    """Nobody is there to read it; the metrics are."""
    return Response(status_code=_CLIENT_GONE)


async def _failed(request: Request, error: Exception) -> Response:
    message = f"internal error; the log has it under {getattr(request.state, STATE)[:200]}"
    return json_response(ApiError(500, message, kind=SERVER, code="internal_error").body(), 500)
