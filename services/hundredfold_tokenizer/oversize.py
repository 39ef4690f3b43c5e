"""Refuses requests by their size before they are parsed: reading 30 MB would keep everybody else waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from hundredfold.config import MIB
from hundredfold_tokenizer.validation.errors import invalid

Handlers = Mapping[str, Any]
"""RpcMethodHandlers by the method's name."""


def most_request_bytes(max_prompt_bytes: int) -> int:
    """What a request can take at most: its prompt, also as ids or as JSON, and all its other fields."""
    return 4 * max_prompt_bytes + 2 * MIB


def add_limited(
    add: Callable[[Any, Any], None], servicer: object, server: grpc.aio.Server, max_bytes: int
) -> None:
    """Add a servicer whose requests may have ``max_bytes``; ``add`` is the generated function for it."""
    collected = _Collector()
    add(servicer, collected)
    for service, handlers in collected.services.items():
        limited = {name: _limited(handler, max_bytes) for name, handler in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, limited),))
        server.add_registered_method_handlers(service, limited)


class _Collector:
    """Takes what generated code gives to a server."""

    def __init__(self) -> None:
        self.services: dict[str, Handlers] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[object]) -> None:
        """The same handlers come by name as well."""

    def add_registered_method_handlers(self, service: str, handlers: Handlers) -> None:
        """Remember one service's handlers."""
        self.services[service] = handlers


def _limited(handler: Any, max_bytes: int) -> Any:
    read = handler.request_deserializer

    def deserialize(raw: bytes) -> Any:
        if len(raw) > max_bytes:
            raise invalid("request", f"{len(raw)} bytes", f"is above the limit {max_bytes}")
        return raw if read is None else read(raw)

    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(
            handler.unary_stream, deserialize, handler.response_serializer
        )
    return grpc.unary_unary_rpc_method_handler(handler.unary_unary, deserialize, handler.response_serializer)
