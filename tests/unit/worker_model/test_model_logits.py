"""Logits of tiny random checkpoints against transformers: every variant of Llama, every way to step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from support.llama_checkpoints import random_llama, reference_logits
from support.model_rows import load, one_prefill, run_rows

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "a key head each": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "head_dim apart from hidden size": {"head_dim": 24},
    "attention biases": {"attention_bias": True},
    "mlp biases": {"mlp_bias": True},
    "tied head": {"tie_word_embeddings": True},
    "large epsilon": {"rms_norm_eps": 0.1},
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "llama3 scaling": {"rope_parameters": LLAMA3},
    "another theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(tmp_path: Path, variant: str) -> None:
    reference = random_llama(**VARIANTS[variant])
    reference.save_pretrained(tmp_path)
    model = load(tmp_path)
    ids = torch.randint(0, 96, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    wanted = reference_logits(reference, ids)
    ways = {"prefill": [60], "chunks": [7, 9, 44], "decode": [9, *[1] * 51]}
    for way, got in zip(ways, run_rows(model, [(ids, chunks) for chunks in ways.values()]), strict=True):
        error = float((got - wanted).abs().max())
        assert error <= 1e-4, f"{variant}, {way}: {error}"
    assert torch.equal(one_prefill(model, ids).argmax(-1), wanted.argmax(-1))


def test_bf16_weights_in_fp32(tmp_path: Path) -> None:
    random_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    ids = list(range(40))
    # read anew: casting the model itself would round its rotary frequencies too
    wanted = reference_logits(LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval(), ids)
    assert float((one_prefill(load(tmp_path), ids) - wanted).abs().max()) <= 1e-4


def test_bf16_is_as_near_to_fp32_as_transformers_in_bf16(tmp_path: Path) -> None:
    reference = random_llama()
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 96, (200,), generator=torch.Generator().manual_seed(6)).tolist()
    exact = reference_logits(reference, ids)
    halved = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    theirs = reference_logits(halved, ids).float()
    model = load(tmp_path, dtype="bf16")
    assert model.dtype == torch.bfloat16
    for ours in run_rows(model, [(ids, [200]), (ids, [50, 150]), (ids, [190, *[1] * 10])]):
        assert float((ours - exact).norm()) <= 1.25 * float((theirs - exact).norm())


def test_logits_only_where_asked(tmp_path: Path) -> None:
    from hundredfold.plugin import AttentionBatch

    random_llama().save_pretrained(tmp_path)
    model = load(tmp_path)
    ids, positions = torch.arange(5, 25), torch.arange(20)
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    batch = AttentionBatch([20], [20], table, positions, positions)
    cache = model.cache_planner.allocate(2)
    everywhere = model.forward(ids, batch, cache, positions).clone()
    asked = torch.tensor([19, 3, 3])
    assert torch.equal(model.forward(ids, batch, cache, asked), everywhere[asked])
    nowhere = model.forward(ids, batch, cache, torch.tensor([], dtype=torch.int64))
    assert nowhere.shape == (0, 96)
    assert nowhere.dtype == torch.float32


def test_a_cache_filled_without_logits_serves_the_next_step(tmp_path: Path) -> None:
    from hundredfold.plugin import AttentionBatch

    reference = random_llama()
    reference.save_pretrained(tmp_path)
    model = load(tmp_path)
    cache = model.cache_planner.allocate(2)
    table = torch.tensor([[1, 0]], dtype=torch.int32)
    slots = torch.tensor([16 + i if i < 16 else i - 16 for i in range(20)])
    positions = torch.arange(20)
    ids = list(range(30, 50))
    first = AttentionBatch([19], [19], table, slots[:19], positions[:19])
    model.forward(torch.tensor(ids[:19]), first, cache, torch.tensor([], dtype=torch.int64))
    last = AttentionBatch([1], [20], table, slots[19:], positions[19:])
    got = model.forward(torch.tensor(ids[19:]), last, cache, torch.tensor([0]))
    assert float((got[0] - reference_logits(reference, ids)[-1]).abs().max()) <= 1e-4


def test_copied_blocks_continue_like_the_original(tmp_path: Path) -> None:
    from hundredfold.plugin import AttentionBatch

    random_llama().save_pretrained(tmp_path)
    model = load(tmp_path)
    cache = model.cache_planner.allocate(6)
    positions = torch.arange(20)
    batch = AttentionBatch([20], [20], torch.tensor([[0, 1]], dtype=torch.int32), positions, positions)
    model.forward(torch.arange(20), batch, cache, positions[-1:])
    # a chain of copies: each source is read before any destination is written
    cache.copy_blocks(torch.tensor([0, 1, 2]), torch.tensor([3, 4, 1]))
    after = []
    for table in ([0, 5], [3, 5]):
        step = AttentionBatch(
            [1], [17], torch.tensor([table], dtype=torch.int32), torch.tensor([5 * 16]), torch.tensor([16])
        )
        after.append(model.forward(torch.tensor([7]), step, cache, torch.tensor([0])).clone())
    assert torch.equal(after[0], after[1])
    assert cache.nbytes == 6 * model.cache_planner.bytes_per_block()
