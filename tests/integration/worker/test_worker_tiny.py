"""The engine over a real, tiny Llama in fp32: the same ids however work was cut, placed and interrupted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hundredfold_worker.engine.draft_cost import DraftCost
from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.plan import EndReason, NewSequence, StepPlan
from hundredfold_worker.engine.slots import EngineLimits
from hundredfold_worker.engine.speculation import Speculation
from hundredfold_worker.failures import FailureCode
from hundredfold_worker.memory import CacheNeed, MemoryBudget, num_blocks
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import Loaded, make_engine, open_registries, start_model
from support.drafters import Knowing
from support.llama_checkpoints import random_llama
from support.model_rows import load as load_bare
from support.poison import poison
from support.step_driver import StepDriver, Track, ints

GREEDY = SamplingParams(max_tokens=24)
KINDS = [
    GREEDY,
    SamplingParams(max_tokens=24, temperature=1.0, seed=3),
    SamplingParams(max_tokens=24, temperature=0.7, top_k=30, top_p=0.9, seed=4),
    SamplingParams(max_tokens=24, repetition_penalty=1.3, frequency_penalty=0.4),
    SamplingParams(max_tokens=24, temperature=1.2, min_p=0.02, presence_penalty=1.0, seed=5),
]
PROMPTS = [np.random.default_rng(n).integers(3, 512, n).tolist() for n in (5, 15, 16, 17, 33, 64, 100, 2)]


@pytest.fixture(scope="module", params=["auto", "int8", "fp8", "int4"])
def loaded(tiny_checkpoint: str, request: pytest.FixtureRequest) -> Loaded:
    """Over each kind of cache: what a token reads of a quantized one does not depend on the way either."""
    return load(tiny_checkpoint, request.param)


@pytest.fixture(scope="module")
def exact(tiny_checkpoint: str) -> Loaded:
    """With the cache that loses nothing."""
    return load(tiny_checkpoint, "auto")


def load(checkpoint: str, kv_cache_dtype: str) -> Loaded:
    torch.set_num_threads(1)
    settings = WorkerSettings(
        model=checkpoint, dtype="fp32", block_size=16, num_threads=1, kv_cache_dtype=kv_cache_dtype
    )
    return start_model(settings, open_registries(settings))


def driver(loaded: Loaded, chunk: int = 1 << 30, warm_up: bool = False, **changes: int) -> StepDriver:
    values = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "num_kv_blocks": 8 * 20} | changes
    settings = WorkerSettings(dtype="fp32", block_size=16, num_threads=1, warm_up=warm_up, **values)
    return StepDriver(make_engine(loaded, settings).engine, chunk)


@pytest.fixture(scope="module")
def alone(loaded: Loaded) -> list[list[int]]:
    """What each prompt gets by itself; kinds in turn."""
    outputs = []
    for i, prompt in enumerate(PROMPTS):
        single = driver(loaded)
        track = single.add(0, prompt, KINDS[i % 5])
        single.run()
        outputs.append(track.output)
    return outputs


def everyone(run: StepDriver) -> list[Track]:
    return [run.add(slot, prompt, KINDS[slot % 5]) for slot, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("chunk", [1 << 30, 32, 9, 1])
def test_batched_and_chunked(loaded: Loaded, alone: list[list[int]], chunk: int) -> None:
    run = driver(loaded, chunk)
    tracks = everyone(run)
    run.run()
    assert [t.output for t in tracks] == alone
    assert len({tuple(t.output) for t in tracks}) == 8


def test_greedy_equals_transformers(tiny_checkpoint: str, exact: Loaded) -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32)
    for i in (0, 5):
        prompt = torch.tensor([PROMPTS[i]])
        want = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
        )
        run = driver(exact)
        track = run.add(0, PROMPTS[i], GREEDY)
        run.run()
        assert track.output == want[0, len(PROMPTS[i]) :].tolist()


@pytest.mark.parametrize("received", [1, 11, 23])
def test_preempted_and_replayed(loaded: Loaded, alone: list[list[int]], received: int) -> None:
    run = driver(loaded, chunk=20)
    tracks = [run.add(7 - i, prompt, KINDS[i % 5], alone[i][:received]) for i, prompt in enumerate(PROMPTS)]
    run.run()
    assert [t.output for t in tracks] == alone


def test_a_shared_prefix_is_read_from_the_cache(loaded: Loaded) -> None:
    """Two sequences over one sequence's blocks, from a block boundary on and from inside a copied block."""
    prompt = PROMPTS[6]
    plain = driver(loaded)
    want = plain.add(0, prompt, GREEDY)
    plain.run()
    run = driver(loaded)
    first = run.add(0, prompt, GREEDY)
    run.run_step()
    mine = run.blocks_of(0)
    news = []
    for slot, computed in ((1, 96), (2, 99)):
        own = run.blocks_of(slot)
        table = [*mine[:6], *own[6:]]
        news.append(
            NewSequence(slot, slot, ints(prompt), GREEDY, block_ids=ints(table), num_computed=computed)
        )
        run.tracks[slot] = Track(prompt, GREEDY)
    plan = StepPlan(
        2,
        new_sequences=tuple(news),
        copy_sources=ints([mine[6]]),
        copy_destinations=ints([run.blocks_of(2)[6]]),
        slots=ints([0, 1, 2]),
        num_tokens=ints([1, 4, 1]),
    )
    run.step = 2
    run.take(plan, run.engine.step(plan))
    run.run()
    assert first.output == run.tracks[1].output == run.tracks[2].output == want.output


def test_content_of_freed_blocks_does_not_matter(loaded: Loaded, alone: list[list[int]]) -> None:
    """Report 25: a cache full of NaN gives the same ids: nothing is read before it is written."""
    run = driver(loaded)
    for layer in run.engine._cache.layers:
        poison(layer)
    tracks = everyone(run)
    run.run()
    assert [t.output for t in tracks] == alone


def test_warm_up_leaves_no_trace(loaded: Loaded, alone: list[list[int]]) -> None:
    run = driver(loaded, warm_up=True)
    tracks = everyone(run)
    run.run()
    assert [t.output for t in tracks] == alone


def test_scores_match_log_softmax_of_transformers(tiny_checkpoint: str, exact: Loaded) -> None:
    """Report 36: values, not only shapes; in chunks."""
    from transformers import LlamaForCausalLM

    params = SamplingParams(max_tokens=3, logprobs=4, prompt_logprobs=4)
    run = driver(exact, chunk=13)
    track = run.add(0, PROMPTS[4], params)
    run.run()
    ids = PROMPTS[4] + track.output
    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        want = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(dim=-1)
    got = np.concatenate([part.scores.logprobs for part in track.scores])
    assert len(got) == len(ids) - 1
    np.testing.assert_allclose(got, want[range(len(got)), ids[1:]].numpy(), atol=1e-4)
    tops = np.concatenate([part.scores.top_logprobs for part in track.scores])
    np.testing.assert_allclose(tops, want.topk(4, dim=-1).values.numpy(), atol=1e-4)


def test_the_end_of_the_context(loaded: Loaded) -> None:
    """Report 48: exactly max_model_len tokens, then length."""
    run = driver(loaded, num_kv_blocks=130, max_num_seqs=1, max_num_batched_tokens=2048)
    track = run.add(0, [i % 500 for i in range(2045)], SamplingParams(max_tokens=50))
    run.run()
    assert (len(track.output), track.end) == (3, EndReason.LENGTH)


def test_the_worst_case_right_after_the_start(loaded: Loaded) -> None:
    """Report 13: most tokens, all seats, everything asked for; nobody fails."""
    run = driver(loaded, max_num_batched_tokens=300)
    asks = replace(KINDS[2], max_tokens=4, logprobs=20, prompt_logprobs=20)
    tracks = [run.add(slot, (PROMPTS[6] * 3)[:250], asks) for slot in range(8)]
    while not all(t.over for t in tracks):
        left = {s: len(t.prompt) + len(t.output) - t.computed for s, t in run.tracks.items() if not t.over}
        budget, rows = 300, []
        for slot, need in sorted(left.items(), key=lambda item: item[1]):
            if min(need, budget):
                rows.append((slot, min(need, budget)))
                budget -= rows[-1][1]
        plan = run.plan([slot for slot, _ in rows])
        plan = replace(plan, num_tokens=ints([take for _, take in rows]))
        run.take(plan, run.engine.step(plan))
    assert all(t.failure is None and len(t.output) == 4 for t in tracks)
    assert all(sum(len(p.scores.logprobs) for p in t.scores) == 249 + 4 for t in tracks)


def test_a_smaller_cache_type_holds_more_in_the_same_memory(tmp_path: Path) -> None:
    """Report 12: blocks are counted in bytes of the type that the cache has, and take what was counted."""
    random_llama(head_dim=64).save_pretrained(tmp_path)
    budget = MemoryBudget(total=1 << 30, utilization=0.03, held=0, step=0, free=1 << 30)
    blocks = {}
    for kind in ("fp32", "bf16", "int8", "fp8", "fp8_e5m2", "int4"):
        planner = load_bare(tmp_path, kv_cache_dtype=kind, block_size=16).cache_planner
        need = CacheNeed(planner.bytes_per_block(), 16, max_model_len=256, max_num_seqs=1 << 20)
        blocks[kind] = num_blocks(budget, need, None)
        assert planner.allocate(blocks[kind]).nbytes == blocks[kind] * planner.bytes_per_block()
    assert blocks["bf16"] >= 1.95 * blocks["fp32"]
    assert min(blocks["int8"], blocks["fp8"], blocks["fp8_e5m2"]) >= 1.8 * blocks["bf16"]
    assert blocks["int4"] >= 3 * blocks["bf16"]


def test_drafts_change_no_ids(loaded: Loaded, alone: list[list[int]]) -> None:
    """Drafted tokens are written and, where they were wrong, overwritten: in every kind of cache."""
    limits = EngineLimits(
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_model_len=loaded.model.max_model_len,
        block_size=16,
        vocab_size=loaded.model.description.vocab_size,
        num_blocks=160,
        max_draft_tokens=5,
    )
    drafter = Knowing(0.3, vocab_size=512)
    drafter.answers = {slot: prompt + alone[slot] for slot, prompt in enumerate(PROMPTS)}
    speculation = Speculation(drafter, DraftCost([1], [1.0]), limits)
    cache = loaded.model.cache_planner.allocate(limits.num_blocks)
    run = StepDriver(Engine(loaded.model, cache, limits, speculation), 1 << 30, limits.max_draft_tokens)
    tracks = everyone(run)
    run.run()
    assert [t.output for t in tracks] == alone
    totals = run.engine.totals
    assert 0 < totals.accepted_tokens < totals.drafted_tokens


def test_a_layer_that_overflows_is_no_stream_of_token_0(tiny_checkpoint: str, tmp_path: Path) -> None:
    """Report 70."""
    shutil.copytree(tiny_checkpoint, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    for part in ("up_proj", "down_proj"):
        tensors[f"model.layers.1.mlp.{part}.weight"] *= 1e30
    save_file(tensors, tmp_path / "model.safetensors")
    steps = driver(load(str(tmp_path), "auto"))
    track = steps.add(0, PROMPTS[0], GREEDY)
    steps.run()
    assert track.failure is not None
    assert track.failure.code == FailureCode.INTERNAL
    assert "non-finite logits" in track.failure.message
    assert track.output == []
