"""Bodies of requests: what is refused before it is read."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.http.bodies import read_object


class Sender:
    """A client's body, and how much of it was asked for."""

    def __init__(self, body: bytes, declared: str | None) -> None:
        self.reads = 0
        self._body = body
        headers = [(b"content-type", b"application/json")]
        if declared is not None:
            headers.append((b"content-length", declared.encode()))
        self.request = Request({"type": "http", "method": "POST", "headers": headers}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        self.reads += 1
        return {"type": "http.request", "body": self._body, "more_body": False}


async def test_a_body_declared_too_large_is_refused_unread() -> None:
    sender = Sender(b"{}", declared="11")
    with pytest.raises(ApiError, match="11 bytes; the limit max_body_bytes is 10") as refusal:
        await read_object(sender.request, 10)
    assert refusal.value.status == 413
    assert sender.reads == 0


@pytest.mark.parametrize("declared", ["10", None])
async def test_a_body_of_just_the_limit_is_read(declared: str | None) -> None:
    assert await read_object(Sender(b'{"a": 123}', declared).request, 10) == {"a": 123}


async def test_a_body_of_no_declared_length_is_measured() -> None:
    with pytest.raises(ApiError, match="11 bytes or more; the limit max_body_bytes is 10"):
        await read_object(Sender(b'{"a": 1234}', None).request, 10)
