"""Checks the fields of a request that are neither its prompt nor its sampling."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from dataclasses import dataclass
from urllib.parse import unquote

import grpc

from hundredfold.rpc import RequestError
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer import limits
from hundredfold_tokenizer.validation.errors import invalid, unsupported

_REQUEST_ID = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who asks, and under which name.

    Attributes:
        request_id: The request's name, drawn when the client gave none.
        priority: Higher runs first.
        tenant: Whom the work is counted for.
        cache_salt: Keeps the tenant's cached prefixes apart; empty when nothing is to be kept apart.
    """

    request_id: str
    priority: int
    tenant: str
    cache_salt: bytes


def check_model(asked: str | None, served: str) -> None:
    """Refuse a model that is not the served one: NOT_FOUND."""
    if asked is None or asked == served:
        return
    message = f"model = {asked[: limits.MAX_NAME_BYTES]!r} is not served here; served: {served!r}"
    raise RequestError(grpc.StatusCode.NOT_FOUND, message, field="model")


def check_envelope(message: pb.GenerateRequest, peer: str) -> Envelope:
    """The typed envelope of a request that came from ``peer``, as gRPC writes it.

    Raises:
        RequestError: INVALID_ARGUMENT or UNIMPLEMENTED.
    """
    if message.HasField("adapter_id"):
        raise unsupported("adapter_id")
    if message.HasField("grammar"):
        raise unsupported("grammar")
    if abs(message.priority) > limits.MAX_PRIORITY:
        bounds = f"is not from -{limits.MAX_PRIORITY} to {limits.MAX_PRIORITY}"
        raise invalid("priority", message.priority, bounds)
    tenant = _tenant(message, peer)
    return Envelope(
        _request_id(message), message.priority, tenant, _salt(tenant, _name(message, "cache_salt"))
    )


def _request_id(message: pb.GenerateRequest) -> str:
    if not message.HasField("request_id"):
        return f"req-{secrets.token_hex(12)}"
    request_id = message.request_id
    if len(request_id) > limits.MAX_REQUEST_ID_CHARS:
        limit = f"is above the limit {limits.MAX_REQUEST_ID_CHARS}"
        raise invalid("request_id", f"{len(request_id)} characters", limit)
    if _REQUEST_ID.fullmatch(request_id) is None:
        raise invalid("request_id", request_id, "is empty or holds other than visible ASCII characters")
    return request_id


def _tenant(message: pb.GenerateRequest, peer: str) -> str:
    """The stated tenant if the peer can be trusted to state it; the peer's own address otherwise."""
    tenant = _name(message, "tenant")
    host = _remote_host(peer)
    return tenant if host is None else f"peer:{host}"


def _name(message: pb.GenerateRequest, field: str) -> str:
    value: str = getattr(message, field)
    size = len(value.encode())
    if size > limits.MAX_NAME_BYTES:
        raise invalid(field, f"{size} bytes", f"is above the limit {limits.MAX_NAME_BYTES}")
    return value


def _remote_host(peer: str) -> str | None:
    """The host that a call came from, or None if it is this one."""
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return None
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return None if (mapped or address).is_loopback else host


def _salt(tenant: str, salt: str) -> bytes:
    """A client chooses its salt but not the tenant before it, so it cannot reach another's prefixes."""
    if not tenant and not salt:
        return b""
    owner = tenant.encode()
    return hashlib.sha256(len(owner).to_bytes(4, "big") + owner + salt.encode()).digest()
