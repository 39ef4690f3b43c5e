"""Every format that ``hundredfold quantize`` writes, in one checkpoint, through the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hundredfold.models import resolve
from hundredfold.plugin.registry import all_registries
from hundredfold_worker.quantize.recipe import Options, parse_rule
from hundredfold_worker.quantize.run import Plan, quantize
from hundredfold_worker.quantize.source import open_source
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import make_engine, open_registries, start_model
from support.reference import greedy_ids
from support.step_driver import StepDriver

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
PROMPTS = ([5, 9, 300, 44, 17, 60, 411], [7] * 20, list(range(100, 140)))
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def quantized(tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("mixed") / "out"
    rules = tuple(parse_rule(rule, Options()) for rule in RULES)
    quantize(
        Plan(tiny_checkpoint, made, None, rules, None, samples=4, window=64), lambda what, done, total: None
    )
    return made


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
    quantized: Path, tiny_checkpoint: str
) -> None:
    model = dense(quantized, tiny_checkpoint)
    settings = WorkerSettings(
        model=str(quantized),
        dtype="fp32",
        activations="float",
        num_threads=1,
        num_kv_blocks=64,
        max_num_seqs=4,
    )
    run = StepDriver(make_engine(start_model(settings, open_registries(settings)), settings).engine, chunk=16)
    greedy = SamplingParams(max_tokens=NEW_TOKENS)
    tracks = [run.add(slot, prompt, greedy) for slot, prompt in enumerate(PROMPTS)]
    run.run()
    for track in tracks:
        assert len(track.output) == NEW_TOKENS
        assert track.output == greedy_ids(model, track.prompt, track.output)
