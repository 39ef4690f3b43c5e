"""gRPC options of both ends. gRPC ignores a name that it does not know, so they are written once, here."""

from __future__ import annotations

MAX_METADATA_BYTES = 16 * 1024
"""Headers of a call beyond this end it RESOURCE_EXHAUSTED."""

_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 20_000
_UNTAKEN_S = 3600

Options = list[tuple[str, int | str]]
"""As ``grpc.aio.server`` and ``grpc.aio.insecure_channel`` take them."""


def server_options(max_message_bytes: int) -> Options:
    """For a server that takes messages up to ``max_message_bytes`` and notices a dead peer."""
    return [
        *_message_options(max_message_bytes),
        # Two processes on one port would share its clients by chance; the second has to fail instead.
        ("grpc.so_reuseport", 0),
        # A host that vanishes closes nothing: without pings its streams would be held for hours.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        # A long prefill sends nothing: clients may ping meanwhile, and are not cut off for it.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # An event loop takes one call a turn: on a crowded machine the last of hundreds waits for longer than
        # the 30 s after which gRPC cancels it without a word. Our own bounds refuse what is too much.
        ("grpc.server_max_unrequested_time_in_server", _UNTAKEN_S),
    ]


def channel_options(max_message_bytes: int) -> Options:
    """For a channel that notices a dead peer and comes back quickly."""
    return [
        *_message_options(max_message_bytes),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name the time that one attempt may take: a busy machine needs more than the backoff.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # Neighbours are never behind a proxy, and http_proxy is set on many machines.
        ("grpc.enable_http_proxy", 0),
    ]


def _message_options(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ]
