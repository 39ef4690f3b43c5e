"""Refusals in the contract's words."""

from __future__ import annotations

import grpc

from hundredfold.rpc import RequestError

_MAX_SHOWN = 80


def invalid(field: str, value: object, limit: str) -> RequestError:
    """INVALID_ARGUMENT: ``field = value`` breaks ``limit``."""
    return RequestError(grpc.StatusCode.INVALID_ARGUMENT, f"{field} = {shown(value)} {limit}", field=field)


def unsupported(field: str, values: str = "") -> RequestError:
    """UNIMPLEMENTED: a field of the contract, or ``values`` of it, whose feature this server lacks."""
    what = f"{field} {values}" if values else field
    return RequestError(grpc.StatusCode.UNIMPLEMENTED, f"{what} is not supported by this server", field=field)


def shown(value: object) -> str:
    """A value as messages quote it: numbers short, texts quoted and cut."""
    if isinstance(value, float):
        return f"{value:.9g}"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
