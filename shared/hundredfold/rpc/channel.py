"""Channels to other services."""

from __future__ import annotations

import grpc.aio

from hundredfold.rpc.options import channel_options


def open_channel(address: str, max_message_bytes: int) -> grpc.aio.Channel:
    """A plaintext channel to ``HOST:PORT``, ``unix:/PATH`` or a gRPC name; close it after use."""
    return grpc.aio.insecure_channel(address, options=channel_options(max_message_bytes))
