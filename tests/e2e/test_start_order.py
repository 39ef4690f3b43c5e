"""Services start and restart in any order and find each other; a neighbour that does not fit is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.door import generate, request
from support.stack import SERVICES, Stack
from support.tiny_model import make_tiny_model

ASK = request("the quick brown fox", max_tokens=8, temperature=0)
HEAD_START_S = 0.5


ORDERS = [
    ("worker", "scheduler", "tokenizer"),
    ("worker", "tokenizer", "scheduler"),
    ("scheduler", "worker", "tokenizer"),
    ("tokenizer", "scheduler", "worker"),
]
"""Of both pairs of neighbours each comes first, in every combination."""


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_any_order_of_starting_serves(tiny_stack: Stack, order: tuple[str, ...]):
    for service in order:
        tiny_stack.start(service)
        time.sleep(HEAD_START_S)
    tiny_stack.wait_ready()
    assert len(generate(tiny_stack.address, ASK).token_ids) == 8


def test_each_service_can_be_restarted_alone(tiny_stack: Stack):
    tiny_stack.start()
    tiny_stack.wait_ready()
    first = generate(tiny_stack.address, ASK).token_ids
    for service in SERVICES:
        tiny_stack.kill(service)
        tiny_stack.wait_ready()
        assert generate(tiny_stack.address, ASK).token_ids == first, f"after a restart of the {service}"
    tiny_stack.wait_idle()


def test_a_worker_with_another_model_is_refused_and_named(tiny_model: str, tmp_path: Path):
    other = make_tiny_model(tmp_path / "other", max_position_embeddings=512)
    stack = Stack(tiny_model, tmp_path / "stack", {"worker": {"model": other}})
    try:
        stack.start()
        deadline = time.monotonic() + 240
        while "fingerprint" not in stack.log("scheduler"):
            assert time.monotonic() < deadline, stack.log("scheduler")
            time.sleep(0.2)
        assert not stack.is_serving("scheduler")
        assert not stack.is_serving("tokenizer")
        assert stack.processes["scheduler"].poll() is None
    finally:
        stack.stop()
