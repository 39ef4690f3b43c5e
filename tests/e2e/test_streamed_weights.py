"""A model of twice the size of the memory that its weights are given answers as one that has all of it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import torch
from tokenizers import Tokenizer

from hundredfold.v1 import control_pb2, control_pb2_grpc
from support.door import generate, request
from support.reference import greedy_ids
from support.stack import Stack
from support.tiny_model import make_tiny_model

LAYERS, NEW_TOKENS = 10, 24


def test_half_of_the_weights_lie_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("HUNDREDFOLD_CACHE_DIR", str(tmp_path / "cache"))
    model = str(make_tiny_model(tmp_path / "deep", num_layers=LAYERS))
    weights = (tmp_path / "deep" / "model.safetensors").stat().st_size
    flags = {"worker": {"dtype": "fp32", "num_kv_blocks": 64, "weight_memory": weights // 2}}
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():  # ids without a token are never drawn
        reference.lm_head.weight[Tokenizer.from_file(f"{model}/tokenizer.json").get_vocab_size() :] = 0
    with Stack(model, tmp_path / "stack", flags).serving() as stack:
        for prompt in ([5, 9, 300, 44, 17, 60, 411], list(range(100, 140))):
            sent = request(prompt, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
            output = generate(stack.address, sent).token_ids
            assert len(output) == NEW_TOKENS
            assert output == greedy_ids(reference, prompt, output)
        with grpc.insecure_channel(stack.address_of("worker")) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            (worker,) = stub.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=10).services
        (said,) = [item for item in worker.runtime.selections if item.subject == "offload"]
    assert said.chosen == "file"
    assert f"of {LAYERS} layers" in said.reason
