"""Refusals and failures in OpenAI's form, and what each gRPC status becomes."""

from __future__ import annotations

import math
from typing import Any

import grpc

from hundredfold.client import RequestFailed

INVALID = "invalid_request_error"
SERVER = "server_error"

_RETRY_S = 1


class ApiError(Exception):
    """Why a request gets no answer, or no more of it.

    Args:
        status: The HTTP status.
        message: For people: names parameter, value and limit.
        param: The parameter at fault.
        code: For programs, as OpenAI names it.
        kind: OpenAI's ``type``.
        retry_after_s: Whole seconds after which trying again makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = INVALID,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """As clients read it."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


_STATUSES: dict[grpc.StatusCode, tuple[int, str, str | None]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (400, INVALID, None),
    grpc.StatusCode.OUT_OF_RANGE: (400, INVALID, None),
    grpc.StatusCode.FAILED_PRECONDITION: (400, INVALID, None),
    grpc.StatusCode.UNIMPLEMENTED: (400, INVALID, "unsupported_parameter"),
    grpc.StatusCode.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error", None),
    grpc.StatusCode.NOT_FOUND: (404, INVALID, None),
    grpc.StatusCode.ALREADY_EXISTS: (409, INVALID, None),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    grpc.StatusCode.CANCELLED: (500, SERVER, "aborted"),
    grpc.StatusCode.UNAVAILABLE: (503, SERVER, "unavailable"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, SERVER, "timeout"),
}
"""HTTP status, type and code; whatever is not here is a fault of ours, 500."""


def from_door(failure: RequestFailed, param: str | None = None) -> ApiError:
    """What the door said, for our own client; ``param`` is the field at fault as this client names it."""
    status, kind, code = _STATUSES.get(failure.code, (500, SERVER, "internal_error"))
    message = failure.message
    if failure.field is not None and param is not None:
        message = message.replace(failure.field, param, 1).replace(" sampling.", " ")
    if failure.code is grpc.StatusCode.NOT_FOUND and failure.field == "model":
        code = "model_not_found"
    retry_after_s: int | None = None
    if failure.retry_after_s is not None:
        retry_after_s = max(_RETRY_S, math.ceil(failure.retry_after_s))
    elif status in (429, 503):
        retry_after_s = _RETRY_S
    return ApiError(status, message, param=param, code=code, kind=kind, retry_after_s=retry_after_s)


def overloaded(message: str) -> ApiError:
    """There is too much to do already."""
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after_s=_RETRY_S)


def stopping() -> ApiError:
    """The gateway ends."""
    return ApiError(503, "the server is stopping", kind=SERVER, code="unavailable", retry_after_s=_RETRY_S)
