"""gRPC options: names are ignored when wrong, so what both ends rely on is held here."""

from __future__ import annotations

import pytest

from hundredfold.rpc import channel_options, server_options
from hundredfold.rpc.options import Options


@pytest.mark.parametrize("options", [server_options(1 << 20), channel_options(1 << 20)])
def test_both_ends_ping_a_silent_peer(options: Options) -> None:
    """A host that vanishes sends no FIN: only unanswered pings end its streams, and within a minute."""
    found = dict(options)
    assert len(found) == len(options)
    time_ms, timeout_ms = found["grpc.keepalive_time_ms"], found["grpc.keepalive_timeout_ms"]
    assert isinstance(time_ms, int)
    assert isinstance(timeout_ms, int)
    assert 0 < time_ms + timeout_ms <= 60_000
    # Without this gRPC stops pinging a stream on which nothing is sent.
    assert found["grpc.http2.max_pings_without_data"] == 0
    # The other end's patience: its server must not cut us off for pinging this often.
    assert time_ms >= int(dict(server_options(1))["grpc.http2.min_ping_interval_without_data_ms"])
