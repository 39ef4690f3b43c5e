"""JSON bodies of requests: bounded, timed, and refused in OpenAI's form."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.http.presence import ClientGone

BODY_TIMEOUT_S = 60.0
"""Longest that a body may take to arrive."""

_DISCARD = 8
"""A body of undeclared length is read to its end, and forgotten, up to this many times the limit, so that the
client hears why."""


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        ApiError: 400 for what is none, 408 too slow, 413 too large, 415 not declared as JSON.
        ClientGone: The client went away.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Also what keeps a web page from posting here unasked: browsers ask first for this type.
        raise ApiError(415, f"content-type is {kind[:100]!r}; send application/json")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise ClientGone from None
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {_name(value)}, not an object")
    return value


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A whole answer."""
    return Response(encode(content), status, headers, media_type="application/json")


def encode(content: Any) -> bytes:
    """As JSON on one line; what is no number becomes null."""
    return to_json(content, inf_nan_mode="null")


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(f"{int(declared)} bytes", max_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= max_bytes:
            parts.append(part)
        else:
            parts.clear()
            if size > _DISCARD * max_bytes:
                break
    if size > max_bytes:
        raise _too_large(f"{size} bytes or more", max_bytes)
    return b"".join(parts)


def _too_large(size: str, max_bytes: int) -> ApiError:
    return ApiError(413, f"the body has {size}; the limit max_body_bytes is {max_bytes}")


def _name(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
