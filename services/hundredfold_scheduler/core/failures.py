"""How a request can end other than well, told without gRPC."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@enum.unique
class Code(enum.IntEnum):
    """The gRPC status codes that the core uses; the values are gRPC's."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Failure:
    """A status for one request; ``code`` is a gRPC status code, from here or as a worker sent it."""

    code: int
    message: str
    """Names field, value and limit."""
    field: str = ""
    """The field at fault, when it is the caller's."""
    retry_after_ms: int = 0
    """0 for no hint."""


class Refused(Exception):
    """A submission that is not taken; nothing of it remains."""

    def __init__(self, reason: str, failure: Failure) -> None:
        super().__init__(failure.message)
        self.reason = reason
        """One word for metrics."""
        self.failure = failure


class WorkerProtocolError(Exception):
    """A step result that cannot be true; the worker that sent it is treated as dead."""
