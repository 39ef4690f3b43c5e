"""Opening a server's addresses: stale socket files go, taken ports end the start with the reason."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import grpc.aio

from hundredfold.config.address import TcpAddress, UnixAddress, parse
from hundredfold.errors import StartError

_PRIVATE_MASK = 0o177
_PROBE_S = 1.0
_BACKLOG = 1024

_Resolved = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def listen(server: grpc.aio.Server, address: str) -> str:
    """Open ``address`` and return it with the port that was taken. Raises ``StartError``."""
    parsed = parse(address)
    if isinstance(parsed, UnixAddress):
        _listen_unix(server, parsed.path)
        return address
    _refuse_taken(address, parsed)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    try:
        port = server.add_insecure_port(f"{host}:{parsed.port}")
    except RuntimeError:
        port = 0
    if port == 0:
        raise StartError(f"cannot listen on {address}: gRPC refused it")
    return f"{host}:{port}"


def open_socket(address: str) -> socket.socket:
    """A listening socket at ``address``, for servers of other protocols. Raises ``StartError``."""
    parsed = parse(address)
    if isinstance(parsed, UnixAddress):
        return _open_unix(parsed.path)
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, target = _resolve(parsed)
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)
        made.listen(_BACKLOG)
    except OSError as error:
        if made is not None:
            made.close()
        raise StartError(f"cannot listen on {address}: {(error.strerror or str(error)).lower()}") from None
    return made


def socket_address(opened: socket.socket) -> str:
    """Where a socket listens, in the form of the settings, its port filled in."""
    name = opened.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _open_unix(path: Path) -> socket.socket:
    if not path.parent.is_dir():
        raise StartError(f"cannot listen on unix:{path}: there is no directory {path.parent}")
    _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_PRIVATE_MASK)
    try:
        made.bind(str(path))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise StartError(f"cannot listen on unix:{path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    return made


def _listen_unix(server: grpc.aio.Server, path: Path) -> None:
    if not path.parent.is_dir():
        raise StartError(f"cannot listen on unix:{path}: there is no directory {path.parent}")
    _remove_stale(path)
    before = os.umask(_PRIVATE_MASK)
    try:
        bound = server.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        bound = 0
    finally:
        os.umask(before)
    if bound == 0:
        raise StartError(f"cannot listen on unix:{path}: the socket cannot be created there")
    path.chmod(0o600)


def _remove_stale(path: Path) -> None:
    """gRPC would replace the socket of a live server without a word, so it is asked first."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"cannot listen on unix:{path}: a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise StartError(f"cannot listen on unix:{path}: {error.strerror or error}") from None
    raise StartError(f"cannot listen on unix:{path}: another process listens there")


def _refuse_taken(address: str, parsed: TcpAddress) -> None:
    """Ask the system first: gRPC says that it failed, not why."""
    try:
        family, kind, protocol, _, target = _resolve(parsed)
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {(error.strerror or str(error)).lower()}") from None


def _resolve(address: TcpAddress) -> _Resolved:
    return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
