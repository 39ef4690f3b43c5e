"""Addresses to listen on: host and port, or a Unix socket."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

_MAX_SOCKET_PATH = 107
"""Bytes that Linux takes in a Unix socket's path, its closing zero aside."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file."""

    path: Path


def parse(address: str) -> TcpAddress | UnixAddress:
    """Read ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/PATH``. Raises ``ValueError`` with the reason."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"'{address}' needs an absolute path, such as unix:/run/hundredfold/worker.sock")
        if len(path.encode()) > _MAX_SOCKET_PATH:
            raise ValueError(f"'{address}' has a path over {_MAX_SOCKET_PATH} bytes")
        return UnixAddress(Path(path))
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f"'{address}' is not HOST:PORT, [IPV6]:PORT or unix:/PATH")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ValueError(f"'{address}' needs brackets around its IPv6 host, such as [::1]:50051")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"'{address}' has port '{port}'; a port is a number from 0 to 65535")
    return TcpAddress(host.strip("[]"), int(port))


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address: loopback or a Unix socket."""
    parsed = parse(address)
    if isinstance(parsed, UnixAddress):
        return True
    if parsed.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        return False
