"""Messages over gRPC's 4 MiB default pass every hop; those over the configured limit are refused."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc as rpc
from support.door import OPTIONS, generate, request
from support.stack import Stack
from support.tiny_model import make_tiny_model

MIB = 1 << 20
GRPC_DEFAULT = 4 * MIB
LONG = 12288


@pytest.fixture
def long_stack(tmp_path: Path) -> Stack:
    """A context of 12k tokens."""
    model = make_tiny_model(tmp_path / "long", max_position_embeddings=LONG)
    return Stack(str(model), tmp_path / "stack", {"worker": {"num_kv_blocks": 400}})


def test_scores_of_a_long_prompt_pass_every_hop_in_one_message(long_stack: Stack):
    try:
        long_stack.start()
        long_stack.wait_ready()
        ids = [3 + i % 500 for i in range(LONG - 8)]
        ask = request(ids, max_tokens=1, prompt_logprobs=20, temperature=0)
        with grpc.insecure_channel(long_stack.address, options=OPTIONS) as channel:
            reply = rpc.GenerationServiceStub(channel).GenerateOnce(
                pb.GenerateOnceRequest(request=ask), timeout=120
            )
        assert reply.ByteSize() > GRPC_DEFAULT
        assert len(reply.prompt_logprobs.tokens) == len(ids)
        assert all(len(entry.top) == 20 for entry in reply.prompt_logprobs.tokens[1:])
    finally:
        long_stack.stop()


def test_a_prompt_of_6_mb_arrives_and_is_refused_for_its_length(tiny_stack: Stack):
    tiny_stack.start()
    tiny_stack.wait_ready()
    with pytest.raises(grpc.RpcError) as refused:
        generate(tiny_stack.address, request("water " * MIB, max_tokens=1))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "6291456 bytes" in refused.value.details()
    assert "context length" in refused.value.details()


def test_a_message_over_the_configured_limit_is_refused_before_it_is_parsed(tiny_stack: Stack):
    tiny_stack.flags = {"tokenizer": {"max_message_bytes": MIB}}
    tiny_stack.start()
    tiny_stack.wait_ready()
    with pytest.raises(grpc.RpcError) as refused:
        generate(tiny_stack.address, request("water " * MIB, max_tokens=1))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MIB) in refused.value.details()
    assert len(generate(tiny_stack.address, request("water", max_tokens=4, ignore_eos=True)).token_ids) == 4
