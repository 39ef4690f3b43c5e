"""Plans that cannot be carried out, and sequences that cannot be served: told by field, value and limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_worker.engine.plan import NewSequence, StepPlan
from hundredfold_worker.failures import BrokenPlan, FailureCode
from hundredfold_worker.sampling.params import SamplingParams
from support.step_driver import ints

GREEDY = SamplingParams(max_tokens=4)


def new(
    slot: int = 0, prompt: list[int] | None = None, blocks: list[int] | None = None, **changes
) -> NewSequence:
    base = NewSequence(
        slot, 9, ints([1, 2, 3] if prompt is None else prompt), GREEDY, block_ids=ints(blocks or [0])
    )
    return replace(base, **changes)


BROKEN = {
    "step is 3, the one after 0": StepPlan(3),
    "released_slots has 8, max_num_seqs is 8": StepPlan(1, released_slots=ints([8])),
    "released_slots names slot 2, which holds no": StepPlan(1, released_slots=ints([2])),
    "new_sequences names slot 8, max_num_seqs is 8": StepPlan(1, new_sequences=(new(8),)),
    "new_sequences names slot 1, which holds a seq": StepPlan(1, new_sequences=(new(1), new(1))),
    "new_sequences.block_ids has 136, num_blocks is 136": StepPlan(1, new_sequences=(new(blocks=[136]),)),
    "gives slot 0 21 blocks, a sequence has at most 20": StepPlan(1, new_sequences=(new(blocks=[0] * 21),)),
    "num_computed_tokens of slot 0 is 3, it has to be below its 3": StepPlan(
        1, new_sequences=(new(num_computed=3),)
    ),
    "num_computed_tokens of slot 0 is 17, its 1 blocks hold 16": StepPlan(
        1, new_sequences=(new(prompt=[1] * 20, num_computed=17),)
    ),
    "grown_slots has 1 values, grown_counts has 2": StepPlan(
        1, new_sequences=(new(),), grown_slots=ints([0]), grown_counts=ints([1, 1])
    ),
    "grown_counts add up to 2, grown_block_ids has 1": StepPlan(
        1, new_sequences=(new(),), grown_slots=ints([0]), grown_counts=ints([2]), grown_block_ids=ints([1])
    ),
    "grown_slots has 9, max_num_seqs is 8": StepPlan(
        1, grown_slots=ints([9]), grown_counts=ints([1]), grown_block_ids=ints([1])
    ),
    "grown_slots names slot 4, which holds no sequence": StepPlan(
        1, grown_slots=ints([4]), grown_counts=ints([1]), grown_block_ids=ints([1])
    ),
    "grown_slots names slot 0 twice": StepPlan(
        1,
        new_sequences=(new(),),
        grown_slots=ints([0, 0]),
        grown_counts=ints([1, 1]),
        grown_block_ids=ints([1, 2]),
    ),
    "grown_block_ids has 4294967295, num_blocks is 136": StepPlan(
        1,
        new_sequences=(new(),),
        grown_slots=ints([0]),
        grown_counts=ints([1]),
        grown_block_ids=ints([2**32 - 1]),
    ),
    "grown_counts gives slot 0 21 blocks": StepPlan(
        1,
        new_sequences=(new(),),
        grown_slots=ints([0]),
        grown_counts=ints([20]),
        grown_block_ids=ints(range(20)),
    ),
    "copies.source has 200, num_blocks is 136": StepPlan(
        1, copy_sources=ints([200]), copy_destinations=ints([1])
    ),
    "copies.destination has 136, num_blocks is 136": StepPlan(
        1, copy_sources=ints([0]), copy_destinations=ints([136])
    ),
    "slots has 1 values, num_tokens has 0": StepPlan(1, new_sequences=(new(),), slots=ints([0])),
    "slots has 77, max_num_seqs is 8": StepPlan(1, slots=ints([77]), num_tokens=ints([1])),
    "slots names slot 3, which holds no sequence": StepPlan(1, slots=ints([3]), num_tokens=ints([1])),
    "slots names slot 0 twice": StepPlan(
        1, new_sequences=(new(),), slots=ints([0, 0]), num_tokens=ints([1, 1])
    ),
    "num_tokens is 0 for a row": StepPlan(1, new_sequences=(new(),), slots=ints([0]), num_tokens=ints([0])),
    "add up to 513, max_num_batched_tokens is 512": StepPlan(
        1, new_sequences=(new(),), slots=ints([0]), num_tokens=ints([513])
    ),
    "num_draft_tokens has 1, max_draft_tokens + 1 is 1": StepPlan(
        1, new_sequences=(new(),), slots=ints([0]), num_tokens=ints([3]), num_draft_tokens=ints([1])
    ),
    "num_draft_tokens has 2 values, it needs one for each of 1 rows": StepPlan(
        1, new_sequences=(new(),), slots=ints([0]), num_tokens=ints([3]), num_draft_tokens=ints([0, 0])
    ),
    "row 0 reaches token 17 of slot 0, whose 1 blocks hold 16": StepPlan(
        1, new_sequences=(new(prompt=[1] * 17),), slots=ints([0]), num_tokens=ints([17])
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_plan_is_refused(make_driver, message: str) -> None:
    driver = make_driver()
    with pytest.raises(BrokenPlan) as refused:
        driver.engine.step(BROKEN[message])
    assert message in str(refused.value)
    driver.engine.reset()
    track = driver.add(0, [4, 5, 6], GREEDY)
    driver.run()
    assert len(track.output) == 4


def sequence_faults() -> dict[str, tuple[NewSequence, FailureCode]]:
    invalid, lacking = FailureCode.INVALID_ARGUMENT, FailureCode.UNIMPLEMENTED

    def params(**changes) -> NewSequence:
        return new(3, params=replace(GREEDY, **changes))

    nan, inf = float("nan"), float("inf")
    return {
        "prompt_token_ids is empty": (new(3, prompt=[]), invalid),
        "prompt_token_ids has id 64, the vocabulary has 64": (new(3, prompt=[1, 64]), invalid),
        "output_token_ids has id 99, the vocabulary has 64": (new(3, output=ints([99])), invalid),
        "prompt_token_ids and output are 257 ids, max_model_len is 256": (new(3, prompt=[1] * 257), invalid),
        "adapter_id": (params(adapter_id="x"), lacking),
        "grammar_id": (params(grammar_id="x"), lacking),
        "temperature is nan": (params(temperature=nan), invalid),
        "temperature is -1": (params(temperature=-1.0), invalid),
        "temperature is inf": (params(temperature=inf), invalid),
        "top_p is 0,": (params(top_p=0.0), invalid),
        "top_p is 1.5": (params(top_p=1.5), invalid),
        "top_p is nan": (params(top_p=nan), invalid),
        "min_p is -0.1": (params(min_p=-0.1), invalid),
        "presence_penalty is inf": (params(presence_penalty=inf), invalid),
        "frequency_penalty is nan": (params(frequency_penalty=nan), invalid),
        "repetition_penalty is 0": (params(repetition_penalty=0.0), invalid),
        "repetition_penalty is -1": (params(repetition_penalty=-1.0), invalid),
        "logprobs is 1e+06, it has to be from 0 to 20": (params(logprobs=10**6), invalid),
        "prompt_logprobs is 21, it has to be from 0 to 20": (params(prompt_logprobs=21), invalid),
        "vocab_limit is 65": (params(vocab_limit=65), invalid),
        "stop_token_ids is 10000": (params(stop_token_ids=tuple(range(10_000))), invalid),
        "bad_words is 2000": (params(bad_words=((1,),) * 2000), invalid),
        "bad_words has a word of 0 ids": (params(bad_words=((),)), invalid),
        "bad_words has a word of 300 ids": (params(bad_words=((1,) * 300,)), invalid),
        "bad_words names id 64": (params(bad_words=((64,),)), invalid),
        "bias_token_ids names id 4294967295": (params(bias_ids=(2**32 - 1,), bias_values=(1.0,)), invalid),
        "bias_values has nan for id 3": (params(bias_ids=(3,), bias_values=(nan,)), invalid),
        "bias_values has 1 values, bias_token_ids has 2": (
            params(bias_ids=(3, 4), bias_values=(1.0,)),
            invalid,
        ),
        "bias_token_ids is 5000": (params(bias_ids=(3,) * 5000, bias_values=(0.1,) * 5000), invalid),
    }


@pytest.mark.parametrize("message", sequence_faults())
def test_a_sequence_that_cannot_be_served_ends_alone(make_driver, message: str) -> None:
    """Reports 106 to 108: its first row says why; its neighbour gets the ids it gets alone."""
    fault, code = sequence_faults()[message]
    lonely = make_driver()
    want = lonely.add(0, [4, 5, 6], GREEDY)
    lonely.run()
    driver = make_driver()
    track = driver.add(0, [4, 5, 6], GREEDY)
    plan = driver.plan()
    plan = replace(
        plan, new_sequences=(*plan.new_sequences, fault), slots=ints([3, 0]), num_tokens=ints([2, 3])
    )
    result = driver.engine.step(plan)
    (told,) = result.failures
    assert told.row == 0
    assert told.failure.code is code
    assert message in told.failure.message
    assert told.failure.field
    assert result.num_outputs.tolist() == [0, 1]
    track.output += result.token_ids.tolist()
    track.computed = 3
    again = driver.engine.step(StepPlan(2, slots=ints([3, 0]), num_tokens=ints([1, 1])))
    assert not again.failures
    track.output += again.token_ids.tolist()
    track.computed = 4
    driver.step = 2
    driver.pending_release.append(3)
    driver.run()
    assert track.output == want.output


def test_no_token_left(make_driver) -> None:
    driver = make_driver()
    bad = driver.add(0, [1], replace(GREEDY, bad_words=tuple((i,) for i in range(64))))
    driver.run_step()
    assert bad.failure is not None
    assert bad.failure.code is FailureCode.INVALID_ARGUMENT
    assert "no token is left" in bad.failure.message
