"""What a request's headers and connection say: its name, its time, its tenant and its priority."""

from __future__ import annotations

import ipaddress
import math
import re
import secrets

from starlette.requests import Request

from hundredfold.client import GenerateOptions
from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.http.front import STATE

TIMEOUT = "x-request-timeout"
TENANT = "x-tenant"
PRIORITY = "x-priority"

_PLAIN = re.compile(r"[!-~]+")
_MAX_NAME = 96
_MAX_TIMEOUT_S = 86400.0


def request_name(request: Request) -> str:
    """A name for the door: the client's own as far as it can be one, and unlike that of any other request."""
    given = str(getattr(request.state, STATE))[:_MAX_NAME]
    stem = given if _PLAIN.fullmatch(given) else "http"
    return f"{stem}-{secrets.token_hex(4)}"


def timeout_s(request: Request, most: float | None) -> float | None:
    """Seconds that the request may take: what its header says, at most ``most``. Raises ``ApiError``."""
    text = request.headers.get(TIMEOUT)
    if text is None:
        return most
    try:
        asked = float(text)
    except ValueError:
        asked = math.nan
    if not 0 < asked <= _MAX_TIMEOUT_S:
        limit = f"is not a number of seconds above 0 and at most {_MAX_TIMEOUT_S:g}"
        raise ApiError(400, f"{TIMEOUT} = {text[:50]!r} {limit}", param=TIMEOUT)
    return asked if most is None else min(asked, most)


def add_standing(request: Request, options: GenerateOptions) -> None:
    """Add priority and tenant from headers, where the body has none; others than local clients are named by
    their address, as the door does it. Raises ``ApiError``."""
    priority = request.headers.get(PRIORITY)
    if priority is not None and options.get("priority") is None:
        try:
            options["priority"] = int(priority)
        except ValueError:
            raise ApiError(
                400, f"{PRIORITY} = {priority[:50]!r} is not a whole number", param=PRIORITY
            ) from None
    host = _remote_host(request)
    if host is not None:
        options["tenant"] = f"peer:{host}"
    elif options.get("tenant") is None:
        options["tenant"] = request.headers.get(TENANT)


def _remote_host(request: Request) -> str | None:
    """The host that a request came from, None if it is this one."""
    client = request.client
    if client is None or not client.host:
        return None
    try:
        address = ipaddress.ip_address(client.host)
    except ValueError:
        return client.host
    mapped = getattr(address, "ipv4_mapped", None)
    return None if (mapped or address).is_loopback else client.host
