"""Steps over the toy model: the ids of a sequence depend on nothing but the sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hundredfold_worker.engine.plan import EndReason, NewSequence, StepPlan
from hundredfold_worker.failures import FailureCode, FatalDeviceError
from hundredfold_worker.sampling.params import SamplingParams
from support.step_driver import StepDriver, ints
from support.toy_model import ToyModel

GREEDY = SamplingParams(max_tokens=24)
KINDS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(max_tokens=24, temperature=1.0, seed=7),
    "second choice": SamplingParams(max_tokens=24, temperature=1.0, seed=7, choice_index=1),
    "filtered": SamplingParams(max_tokens=24, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=3),
    "penalized": SamplingParams(
        max_tokens=24, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3, seed=5
    ),
    "edited": SamplingParams(
        max_tokens=24,
        min_tokens=20,
        stop_token_ids=tuple(range(30)),
        bad_words=((31,), (40, 41), (50, 51, 52)),
        bias_ids=(33, 34),
        bias_values=(4.0, -5.0),
        temperature=1.0,
        seed=11,
        frequency_penalty=1.0,
    ),
    "stopping": SamplingParams(max_tokens=24, temperature=1.5, seed=2, stop_token_ids=(3, 5, 7)),
}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed + length).integers(0, 64, length).tolist()


def alone(make_driver: object, prompt: list[int], params: SamplingParams) -> tuple[list[int], object]:
    driver: StepDriver = make_driver(max_num_seqs=1)  # type: ignore[operator]
    track = driver.add(0, prompt, params)
    driver.run()
    return track.output, track.end


@pytest.mark.parametrize("kind", KINDS)
def test_batch_chunks_and_idle_rows_change_nothing(make_driver, kind: str) -> None:
    """Report 98, D 52: alone and whole, or in a batch, in chunks of 5, with other kinds beside it."""
    params = KINDS[kind]
    prompts = [prompt_of(n) for n in (1, 15, 16, 17, 32, 33, 50)]
    want = [alone(make_driver, prompt, params) for prompt in prompts]
    for chunk in (1 << 30, 16, 5, 1):
        driver = make_driver(chunk=chunk)
        tracks = [driver.add(slot, prompt, params) for slot, prompt in enumerate(prompts)]
        driver.add(7, prompt_of(20), KINDS["seeded"])
        driver.run()
        assert [(t.output, t.end) for t in tracks] == want, chunk


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("received", [1, 7, 19])
def test_a_sequence_continues_from_its_outputs(make_driver, kind: str, received: int) -> None:
    """Preemption and replay: prompt and output ids come back apart, in another slot; it goes on as before."""
    prompt = prompt_of(21)
    whole, end = alone(make_driver, prompt, KINDS[kind])
    received = min(received, len(whole) - 1)
    driver = make_driver(chunk=9)
    track = driver.add(5, prompt, KINDS[kind], whole[:received])
    driver.run()
    assert (track.output, track.end) == (whole, end)


def test_kinds_differ(make_driver) -> None:
    """The tests above would pass if nothing had an effect."""
    outputs = {kind: tuple(alone(make_driver, prompt_of(21), params)[0]) for kind, params in KINDS.items()}
    assert len(set(outputs.values())) == len(KINDS)


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32])
def test_output_crosses_block_boundaries(make_driver, length: int) -> None:
    """Report 26: lengths around a multiple of the block size."""
    want, _ = alone(make_driver, prompt_of(length), GREEDY)
    assert len(want) == 24
    driver = make_driver(chunk=length)
    track = driver.add(0, prompt_of(length), GREEDY)
    driver.run()
    assert track.output == want


def test_a_row_that_ended_is_skipped(make_driver) -> None:
    """In flight: plan N+1 names a sequence that ended in N; it gets no id and its lengths stay."""
    driver = make_driver()
    driver.add(0, prompt_of(4), SamplingParams(max_tokens=2))
    driver.add(1, prompt_of(9), SamplingParams(max_tokens=5))
    for _ in range(2):
        driver.run_step([0, 1])
    forwards = driver.tracks[0]
    result = driver.run_step([0, 1])
    assert result.num_outputs.tolist() == [0, 1]
    assert result.num_computed.tolist() == [5, 11]
    assert forwards.output == alone(make_driver, prompt_of(4), SamplingParams(max_tokens=2))[0]
    only_over = driver.run_step([0])
    assert only_over.num_outputs.tolist() == [0]
    assert not only_over.ends


def test_upper_bounds_are_only_that(make_driver) -> None:
    """A plan that allows more tokens than are known computes what is known."""
    driver = make_driver()
    track = driver.add(0, prompt_of(10), GREEDY)
    plan = driver.plan()
    wide = StepPlan(1, new_sequences=plan.new_sequences, slots=ints([0]), num_tokens=ints([200]))
    result = driver.engine.step(wide)
    driver.take(wide, result)
    assert result.num_computed.tolist() == [10]
    driver.run()
    assert track.output == alone(make_driver, prompt_of(10), GREEDY)[0]


def test_ends(make_driver) -> None:
    """Stop ids, length, scores only, the context's end, and more outputs than were allowed."""
    free = SamplingParams(max_tokens=40, temperature=1.0, seed=1)
    whole, end = alone(make_driver, prompt_of(8), free)
    assert (len(whole), end) == (40, EndReason.LENGTH)
    at = next(i for i, token in enumerate(whole) if token not in whole[:i] and i > 4)
    stop = SamplingParams(max_tokens=40, temperature=1.0, seed=1, stop_token_ids=(70, whole[at]))
    driver = make_driver()
    track = driver.add(0, prompt_of(8), stop)
    driver.run()
    assert (track.output, track.end, track.stop_token_id) == (whole[: at + 1], EndReason.STOP, whole[at])

    later = SamplingParams(max_tokens=40, min_tokens=20, temperature=1.0, seed=1, stop_token_ids=(whole[at],))
    longer, _ = alone(make_driver, prompt_of(8), later)
    assert longer[:at] == whole[:at]
    assert whole[at] not in longer[:20]

    nothing = make_driver(chunk=3)
    track = nothing.add(0, prompt_of(8), SamplingParams(max_tokens=0))
    nothing.run()
    assert (track.output, track.end, track.computed) == ([], EndReason.LENGTH, 8)

    full, end = alone(make_driver, prompt_of(250), SamplingParams(max_tokens=100))
    assert (len(full), end) == (6, EndReason.LENGTH)


def test_non_finite_logits_end_one_request(make_driver) -> None:
    """Report 70: NaN, infinity and nothing at all; the neighbours' ids are what they would be alone."""
    poison = {60: float("nan"), 61: float("inf"), 62: float("-inf")}

    def tamper(token_ids: torch.Tensor, logits: torch.Tensor) -> None:
        last = token_ids.tolist()
        for row, token in enumerate(last):
            if token in poison and len(last) == len(logits):
                logits[row, :] = poison[token]

    for sampled in (GREEDY, KINDS["filtered"], KINDS["penalized"]):
        good = [prompt_of(1, seed) for seed in range(3)]
        for prompt in good:
            prompt[0] %= 60
        driver = make_driver(ToyModel(tamper=tamper))
        tracks = [driver.add(i, prompt, sampled) for i, prompt in enumerate(good)]
        bad = [driver.add(3 + i, [token], sampled) for i, token in enumerate(poison)]
        driver.run_step()
        for track in bad:
            assert track.failure is not None
            assert track.failure.code is FailureCode.INTERNAL
            assert "non-finite logits" in track.failure.message
            assert track.output == []
        driver.engine._runner._model.tamper = None
        driver.run()
        assert [t.output for t in tracks] == [alone(make_driver, prompt, sampled)[0] for prompt in good]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError("no"), FailureCode.RESOURCE_EXHAUSTED),
        (torch.OutOfMemoryError("no"), FailureCode.RESOURCE_EXHAUSTED),
        (
            RuntimeError("Allocator: can't allocate memory"),
            FailureCode.RESOURCE_EXHAUSTED,
        ),
        (RuntimeError("secret /etc/path"), FailureCode.INTERNAL),
        (IndexError("x"), FailureCode.INTERNAL),
    ],
)
def test_a_step_that_fails_costs_only_the_request_at_fault(make_driver, error, code) -> None:
    """Report 13: whatever raises whenever token 63 is in a batch; the rest is computed and served."""

    def tamper(token_ids: torch.Tensor, logits: torch.Tensor) -> None:
        if 63 in token_ids.tolist():
            raise error

    driver = make_driver(ToyModel(tamper=tamper))
    prompts = [[token % 60 for token in prompt_of(n)] for n in (3, 20, 11, 5)]
    params = SamplingParams(max_tokens=10, bad_words=((63,),))
    tracks = [driver.add(slot, prompt, params) for slot, prompt in enumerate(prompts)]
    bad = driver.add(6, [1, 2, 63, 4], params)
    driver.run()
    assert bad.failure is not None
    assert bad.failure.code is code
    assert "secret" not in bad.failure.message
    assert [t.output for t in tracks] == [alone(make_driver, prompt, params)[0] for prompt in prompts]
    driver.release(6)
    after = driver.add(6, prompts[0], params)
    driver.run()
    assert after.output == tracks[0].output


def test_copies_come_before_writes(make_driver) -> None:
    """A fork: the second sequence takes over the first one's full block and a copy of its last one."""
    prompt = prompt_of(20)
    driver = make_driver()
    first = driver.add(0, prompt, KINDS["seeded"])
    driver.run_step()
    mine, theirs = driver.blocks_of(0), driver.blocks_of(1)
    fork = NewSequence(
        1, 2, ints(prompt), KINDS["second choice"], block_ids=ints([mine[0], *theirs[1:]]), num_computed=19
    )
    plan = StepPlan(
        2,
        new_sequences=(fork,),
        copy_sources=ints([mine[1]]),
        copy_destinations=ints([theirs[1]]),
        slots=ints([0, 1]),
        num_tokens=ints([1, 1]),
    )
    driver.step = 2
    driver.tracks[1] = second = type(first)(prompt, KINDS["second choice"])
    driver.take(plan, driver.engine.step(plan))
    driver.run()
    assert first.output == alone(make_driver, prompt, KINDS["seeded"])[0]
    assert second.output == alone(make_driver, prompt, KINDS["second choice"])[0]


def test_blocks_grow_and_slots_are_used_again(make_driver) -> None:
    """Blocks given one by one, interleaved between two sequences; a slot serves ten sequences in turn."""
    driver = make_driver(num_blocks=64)
    tables: dict[int, int] = {0: 0, 1: 0}
    free = list(range(64))
    tracks: dict[int, object] = {}
    step, new, released = 0, [], []
    wants = [(n, alone(make_driver, prompt_of(n), GREEDY)[0]) for n in (3, 14, 16, 30, 47)]
    for turn in range(5):
        for slot in (0, 1):
            length = wants[(turn + slot) % 5][0]
            tracks[slot] = driver.tracks[slot] = type_of_track(prompt_of(length))
            new.append(NewSequence(slot, turn, ints(prompt_of(length)), GREEDY))
            tables[slot] = 0
        while any(not t.over for t in driver.tracks.values()):
            step += 1
            slots, grown, counts, ids = [], [], [], []
            for slot, track in driver.tracks.items():
                if track.over:
                    continue
                left = len(track.prompt) + len(track.output) - track.computed
                slots.append((slot, min(left, 10)))
                need = -(-(track.computed + min(left, 10)) // 16) - tables[slot]
                if need > 0:
                    grown.append(slot)
                    counts.append(need)
                    ids += [free.pop(0) for _ in range(need)]
                    tables[slot] += need
            plan = StepPlan(
                step,
                released_slots=ints(released),
                new_sequences=tuple(new),
                grown_slots=ints(grown),
                grown_counts=ints(counts),
                grown_block_ids=ints(ids),
                slots=ints([s for s, _ in slots]),
                num_tokens=ints([n for _, n in slots]),
            )
            free += ids  # blocks of finished sequences come round again; 64 are enough never to collide
            new, released = [], []
            driver.take(plan, driver.engine.step(plan))
        for slot in (0, 1):
            assert driver.tracks[slot].output == wants[(turn + slot) % 5][1]
        released = [0, 1]
    assert driver.engine.num_live == 0


def type_of_track(prompt: list[int]):
    from support.step_driver import Track

    return Track(prompt, GREEDY)


def test_reset_forgets_everything(make_driver) -> None:
    driver = make_driver()
    driver.add(0, prompt_of(9), KINDS["penalized"])
    driver.run_step()
    driver.engine.reset()
    assert driver.engine.num_live == 0
    assert not driver.engine._table.sampling.sparse
    again = StepDriver(driver.engine)
    track = again.add(0, prompt_of(9), KINDS["greedy"])
    again.run()
    assert track.output == alone(make_driver, prompt_of(9), GREEDY)[0]


def test_nothing_is_kept_of_released_sequences(make_driver) -> None:
    """Reports 19, 22, 23: 400 sequences of all kinds, a third of them cancelled on the way."""
    rng = np.random.default_rng(2)
    kinds = list(KINDS.values())
    driver = make_driver(max_num_seqs=8)
    started = 0
    while started < 400 or driver.tracks:
        for slot in range(8):
            track = driver.tracks.get(slot)
            if track is not None and (track.over or rng.random() < 0.03):
                driver.release(slot)
            elif track is None and started < 400:
                params = replace(kinds[started % len(kinds)], max_tokens=int(rng.integers(1, 12)))
                driver.add(slot, prompt_of(int(rng.integers(1, 30)), started), params)
                started += 1
        driver.run_step()
    table = driver.engine._table
    assert driver.engine.num_live == 0
    assert not table.state.any()
    assert not table.faults
    assert not table.sampling.sparse


def test_a_lost_device_ends_the_engine(make_driver) -> None:
    def lose(token_ids: torch.Tensor, logits: torch.Tensor) -> None:
        raise torch.AcceleratorError("device-side assert")

    driver = make_driver(ToyModel(tamper=lose))
    driver.add(0, prompt_of(4), GREEDY)
    driver.add(1, prompt_of(5), GREEDY)
    with pytest.raises(FatalDeviceError):
        driver.run_step()
