"""Addresses of workers: as they stand, or names that stand for several and are looked up."""

from __future__ import annotations

import asyncio
import socket

from hundredfold.config.address import TcpAddress, parse
from hundredfold.telemetry import get_logger

log = get_logger(__name__)

_DNS = "dns:///"
_LOOKUP_S = 5.0


def is_name(address: str) -> bool:
    """Whether an address has to be looked up."""
    return address.startswith(_DNS)


def check_address(address: str) -> str:
    """The address, if it is ``HOST:PORT``, ``unix:/PATH`` or ``dns:///NAME:PORT``. Raises ``ValueError``."""
    parsed = parse(address.removeprefix(_DNS))
    if is_name(address) and not isinstance(parsed, TcpAddress):
        raise ValueError(f"'{address}' is not dns:///NAME:PORT")
    return address


async def look_up(address: str) -> tuple[str, ...] | None:
    """What an address stands for now, in a stable order; ``None`` when that cannot be told at present.

    A name that does not exist stands for nothing: so it is with a headless service that has no ready pod.
    """
    if not is_name(address):
        return (address,)
    target = parse(address.removeprefix(_DNS))
    if not isinstance(target, TcpAddress):
        return ()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOOKUP_S):
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return ()
        log.warning("workers cannot be looked up", name=address, reason=str(error))
        return None
    except (OSError, TimeoutError) as error:
        log.warning("workers cannot be looked up", name=address, reason=str(error) or "no answer in time")
        return None
    hosts = {str(place[4][0]) for place in found}
    return tuple(
        f"[{host}]:{target.port}" if ":" in host else f"{host}:{target.port}" for host in sorted(hosts)
    )
