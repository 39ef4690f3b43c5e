"""A server's refusals and failures as exceptions, one class per status that callers tell apart."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

from hundredfold.rpc.errors import RequestError


class RequestFailed(RequestError):
    """A call failed: ``code``, ``message``, and if known the ``field`` at fault and ``retry_after_s``."""


class InvalidRequest(RequestFailed):
    """INVALID_ARGUMENT: a field is wrong; ``field`` names it."""


class NotFound(RequestFailed):
    """NOT_FOUND: the model or the request id is unknown."""


class AlreadyExists(RequestFailed):
    """ALREADY_EXISTS: a running request has this id."""


class NotPossible(RequestFailed):
    """FAILED_PRECONDITION: the served model or its settings do not allow it."""


class Unsupported(RequestFailed):
    """UNIMPLEMENTED: this server lacks the feature."""


class Overloaded(RequestFailed):
    """RESOURCE_EXHAUSTED: the queue is full or a message too large; ``retry_after_s`` is a hint."""


class Unavailable(RequestFailed):
    """UNAVAILABLE: no server there, or it is starting, draining or without a worker."""


class DeadlineExceeded(RequestFailed):
    """DEADLINE_EXCEEDED: the timeout passed."""


class Cancelled(RequestFailed):
    """CANCELLED: somebody aborted the request."""


class NotAllowed(RequestFailed):
    """UNAUTHENTICATED or PERMISSION_DENIED."""


_CLASSES: dict[grpc.StatusCode, type[RequestFailed]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: NotPossible,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
}


def typed(error: grpc.RpcError) -> RequestFailed:
    """The exception for a failed call of either grpc API, details included."""
    parsed = RequestError.from_rpc(error)  # type: ignore[arg-type]  # both APIs have code, details and trailers
    kind = _CLASSES.get(parsed.code, RequestFailed)
    return kind(parsed.code, parsed.message, parsed.field, parsed.retry_after_s)


def of_all(failures: Sequence[RequestFailed]) -> RequestFailed:
    """Why a call failed that asked every server: what one says that answered comes before others being away.

    Args:
        failures: One of each server; at least one.
    """
    return min(
        failures, key=lambda failure: isinstance(failure, NotFound) + 2 * isinstance(failure, Unavailable)
    )
