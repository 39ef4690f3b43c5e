"""What ends one request, what ends a scheduler's stream, and what ends the worker."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@enum.unique
class FailureCode(enum.IntEnum):
    """The gRPC status codes that a request can end with here."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Ends one sequence and nothing else."""

    code: FailureCode
    message: str
    """Names field, value and limit."""
    field: str = ""
    """The field at fault, when it is the caller's."""


class BrokenPlan(ValueError):
    """A plan that cannot be carried out; it ends the stream it came on. Names field, value and limit."""


class FatalDeviceError(RuntimeError):
    """The device can do no more work; the process has to end."""
