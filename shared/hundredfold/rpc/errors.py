"""Refusals and failures of a request, and the rich gRPC statuses that they become."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata that carries the ``google.rpc.Status``."""

_MAX_MESSAGE_BYTES = 1000
_MAX_FIELD_BYTES = 200


class RequestError(Exception):
    """Why a request cannot be served, for its client: ``message`` names field, value and limit."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        """The field at fault, as a path in the request, such as ``sampling.temperature``."""
        self.retry_after_s = retry_after_s
        """Seconds after which trying again makes sense."""

    @classmethod
    def from_rpc(cls, error: grpc.aio.AioRpcError) -> RequestError:
        """What the other end said, to be passed on to our own client."""
        field: str | None = None
        retry_after_s: float | None = None
        for detail in _details(error):
            bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
            if detail.Unpack(bad) and bad.field_violations:
                field = bad.field_violations[0].field
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        return cls(error.code(), error.details() or error.code().name, field, retry_after_s)


def to_status(error: RequestError) -> status_pb2.Status:
    """The error as ``google.rpc.Status`` with BadRequest and RetryInfo details."""
    message = _cut(error.message, _MAX_MESSAGE_BYTES)
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=message)
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(error.field, _MAX_FIELD_BYTES), description=message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(max(0, round(error.retry_after_s * 1000)))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: RequestError) -> NoReturn:
    """End the call with the error's status and details."""
    status = to_status(error)
    trailing = ((DETAILS_KEY, status.SerializeToString()),) if status.details else ()
    await context.abort(error.code, status.message, trailing)
    raise AssertionError("abort returned")  # context.abort always raises


def _details(error: grpc.aio.AioRpcError) -> list[Any]:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except ValueError:
                return []
    return []


def _cut(text: str, limit: int) -> str:
    """Statuses travel in headers, which are bounded; a message that quotes a value may not be."""
    encoded = text.encode("utf-8", "replace")
    return encoded.decode() if len(encoded) <= limit else encoded[:limit].decode("utf-8", "ignore") + "…"
