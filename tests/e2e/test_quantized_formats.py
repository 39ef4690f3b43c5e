"""Every format that ``hundredfold quantize`` writes, in one checkpoint, from its weights to the door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hundredfold.models import resolve
from hundredfold.plugin.registry import all_registries
from hundredfold_worker.quantize.recipe import Options, parse_rule
from hundredfold_worker.quantize.run import Plan, quantize
from hundredfold_worker.quantize.source import open_source
from support.door import generate, request
from support.reference import greedy_ids
from support.stack import Stack

RULES = (
    "*.0.self_attn.?_proj=gptq:4:32",
    "*.1.self_attn.q_proj=gptq:8:-1",
    "*.1.self_attn.k_proj=gptq:3:32",
    "*.1.self_attn.v_proj=none",
    "*.1.self_attn.o_proj=awq:4:64",
    "*.gate_proj=int8",
    "*.up_proj=fp8",
    "*.0.mlp.down_proj=awq:3:32",
    "*.1.mlp.down_proj=smoothquant",
    "lm_head=gptq:8:32",
    "model.embed_tokens=int8",
)
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def quantized(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("mixed") / "out"
    rules = tuple(parse_rule(rule, Options()) for rule in RULES)
    quantize(Plan(tiny_model, made, None, rules, None, samples=4, window=64), lambda what, done, total: None)
    return made


@pytest.fixture(scope="module")
def stack(quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    flags = {"worker": {"dtype": "fp32", "activations": "float", "num_kv_blocks": 64}}
    with Stack(str(quantized), tmp_path_factory.mktemp("formats"), flags).serving() as running:
        yield running


def dense(quantized: Path, plain: str) -> Any:
    """transformers' model with the numbers that the checkpoint's tensors stand for."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    source = open_source(resolve(str(quantized)), all_registries())
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(source.embedding())
        model.lm_head.weight.copy_(source.head())
        model.model.norm.weight.copy_(source.final_norm())
        for index in range(source.description.num_layers):
            layer = source.layer(index)
            for name, matrix in layer.matrices.items():
                model.get_submodule(name).weight.copy_(matrix.weight)
            for name, norm in layer.norms.items():
                model.get_submodule(name).weight.copy_(norm)
    return model


def test_a_checkpoint_of_all_formats_answers_as_its_numbers_say(
    stack: Stack, quantized: Path, tiny_model: str
) -> None:
    model = dense(quantized, tiny_model)
    for prompt in ([5, 9, 300, 44, 17, 60, 411], [7] * 20, list(range(100, 140))):
        sent = request(prompt, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
        output = generate(stack.address, sent).token_ids
        assert len(output) == NEW_TOKENS
        assert output == greedy_ids(model, prompt, output)
