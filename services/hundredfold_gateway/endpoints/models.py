"""The served model: what it is called and how long its context is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hundredfold.client import AsyncClient, RequestFailed
from hundredfold.v1.control_pb2 import ModelInfo
from hundredfold_gateway.errors import ApiError, from_door
from hundredfold_gateway.http.bodies import json_response

TIMEOUT_S = 5.0
_KEPT_S = 5.0


class Models:
    """Asks the door, and remembers for a few seconds.

    Args:
        client: Talks to the doors.
        clock: Seconds, rising.
    """

    def __init__(self, client: AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: ModelInfo | None = None
        self._until = 0.0

    async def served(self) -> ModelInfo:
        """The model. Raises ``ApiError`` when no door tells."""
        if self._known is None or self._clock() >= self._until:
            try:
                services = await self._client.info(timeout=TIMEOUT_S)
            except RequestFailed as failure:
                raise from_door(failure) from None
            self._known = next((s.model for s in services if s.model.name), ModelInfo())
            self._until = self._clock() + _KEPT_S
        return self._known

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models."""
        return json_response({"object": "list", "data": [_card(await self.served())]})

    async def show_model(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        model, asked = await self.served(), request.path_params["model"]
        if asked != model.name:
            message = f"model = {asked[:256]!r} is not served here; served: {model.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return json_response(_card(model))


def _card(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "hundredfold",
        "max_model_len": model.max_model_len,
    }
