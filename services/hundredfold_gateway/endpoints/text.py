"""Token ids of texts and chats, and texts of token ids."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from hundredfold.client import AsyncClient, RequestFailed
from hundredfold_gateway.endpoints.caller import timeout_s
from hundredfold_gateway.endpoints.models import Models
from hundredfold_gateway.errors import ApiError, from_door
from hundredfold_gateway.gate import Gate
from hundredfold_gateway.http.bodies import json_response, read_object
from hundredfold_gateway.http.presence import while_there
from hundredfold_gateway.openai.fields import RequestModel, UInt32, param_of, parse
from hundredfold_gateway.openai.messages import MAX_MESSAGES, Message, chat_messages
from hundredfold_gateway.settings import GatewaySettings


class TokenizeRequest(RequestModel):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(RequestModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[UInt32]
    skip_special_tokens: bool = False


class Text:
    """The two endpoints that generate nothing.

    Args:
        client: Talks to the doors.
        models: Knows the context length.
        gate: Counts what is in progress.
        settings: What the gateway was told.
    """

    def __init__(self, client: AsyncClient, models: Models, gate: Gate, settings: GatewaySettings) -> None:
        self._client = client
        self._models = models
        self._gate = gate
        self._settings = settings

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        asked = parse(TokenizeRequest, await read_object(request, self._settings.max_body_bytes))
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "exactly one of prompt and messages is needed", param="prompt")
        limit = timeout_s(request, self._settings.request_timeout_s)
        with self._gate.passing(1):
            ids = await self._ask(request, self._ids(asked, limit))
            model = await self._models.served()
        return json_response({"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        asked = parse(DetokenizeRequest, await read_object(request, self._settings.max_body_bytes))
        limit = timeout_s(request, self._settings.request_timeout_s)
        with self._gate.passing(1):
            decoding = self._client.decode(
                asked.tokens, skip_special_tokens=asked.skip_special_tokens, model=asked.model, timeout=limit
            )
            return json_response({"prompt": await self._ask(request, decoding)})

    async def _ids(self, asked: TokenizeRequest, limit: float | None) -> list[int]:
        if asked.prompt is not None:
            return await self._client.encode(
                asked.prompt, add_special_tokens=asked.add_special_tokens, model=asked.model, timeout=limit
            )
        rendered = await self._client.render_chat(
            chat_messages(asked.messages or ()),
            model=asked.model,
            timeout=limit,
            tools=asked.tools or None,
            template_arguments=asked.chat_template_kwargs,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
        )
        return list(rendered.token_ids)

    async def _ask(self, request: Request, work: Any) -> Any:
        try:
            return await while_there(request.receive, self._gate.cut, work)
        except RequestFailed as failure:
            names = {"token_ids": "tokens", "text": "prompt"}
            raise from_door(failure, param_of(failure.field, names)) from None
        except (TypeError, ValueError) as error:
            raise ApiError(400, str(error)[:300]) from None
