"""hundredfold: an LLM inference server as gRPC microservices with a plugin architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hundredfold.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    """Import the clients when they are asked for: services and plugins need nothing of them."""
    if name in __all__:
        from hundredfold import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
