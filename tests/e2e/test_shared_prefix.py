"""A long prefix that was computed once: how long the next request with it waits, as a client sees it."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc as rpc
from support.door import request
from support.pace import in_time
from support.stack import Stack

PREFIX = 2000


@pytest.mark.alone
def test_a_shared_prefix_cuts_the_time_to_the_first_token_to_a_tenth(
    default_model: str, tmp_path: Path
) -> None:
    """Two prefixes of 2,000 tokens, each asked for twice with another end: the second time all but its last
    block comes from the cache.
    """
    flags = {"worker": {"num_threads": 2, "num_kv_blocks": 512, "warm_up": False}}
    with (
        Stack(default_model, tmp_path, flags).serving() as stack,
        grpc.insecure_channel(stack.address) as channel,
    ):
        stub = rpc.GenerationServiceStub(channel)
        first_token(stub, range(500, 700))  # warm
        first, second = [], []
        for number in range(2):
            prefix = [300 + number, *(400 + (number * 31 + i * 17) % 5000 for i in range(PREFIX - 1))]
            first.append(first_token(stub, [*prefix, *range(600, 616)]))
            second.append(first_token(stub, [*prefix, *range(700, 716)]))
    assert all(cached == 0 for _, cached in first)
    assert all(cached >= PREFIX - 32 for _, cached in second)
    cold, warm = (min(seconds for seconds, _ in times) for times in (first, second))  # at its quietest
    print(f"time to the first token {cold * 1e3:.0f} ms, with the prefix cached {warm * 1e3:.0f} ms")
    in_time(10 * warm, cold, "ten times with the prefix cached")


def first_token(stub: rpc.GenerationServiceStub, ids: range | list[int]) -> tuple[float, int]:
    """Seconds until the first token, and prompt tokens that came from the cache."""
    start, first, cached = time.perf_counter(), 0.0, 0
    for event in stub.Generate(request(list(ids), max_tokens=2, ignore_eos=True), timeout=120):
        if event.WhichOneof("event") == "delta" and not first:
            first = time.perf_counter() - start
        if event.HasField("finished"):
            assert event.finished.reason == pb.FINISH_REASON_LENGTH
            cached = event.finished.usage.cached_tokens
    return first, cached
