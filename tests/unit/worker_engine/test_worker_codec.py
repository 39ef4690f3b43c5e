"""The codec: nothing is lost, and no bytes that parse as a plan get past the engine's checks."""

from __future__ import annotations

import numpy as np

from hundredfold.internal.v1 import sequence_pb2, worker_pb2
from hundredfold_worker.codec import plan_of, result_message
from hundredfold_worker.engine.plan import EndReason, RowEnd, RowFailure, RowScores, StepResult
from hundredfold_worker.failures import FailureCode, RequestFailure
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.sampling.scores import TokenScores
from support.step_driver import ints
from support.wire_plan import PLAN


def test_a_plan_comes_through_whole() -> None:
    plan = plan_of(PLAN)
    (new,) = plan.new_sequences
    assert new.params == SamplingParams(
        max_tokens=9,
        min_tokens=1,
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        seed=2**64 - 1,
        choice_index=4,
        stop_token_ids=(1, 2),
        bad_words=((3, 4), (5,)),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        bias_ids=(6,),
        bias_values=(-2.0,),
        logprobs=0,
        prompt_logprobs=3,
        vocab_limit=60,
    )
    assert (new.slot, new.sequence_id, new.num_computed) == (3, 2**64 - 1, 2)
    assert (new.prompt.tolist(), new.output.tolist(), new.block_ids.tolist()) == ([5, 6, 7], [8], [10, 11])
    assert (plan.grown_slots.tolist(), plan.grown_counts.tolist()) == ([3], [2])
    assert plan.grown_block_ids.tolist() == [20, 21]
    assert (plan.copy_sources.tolist(), plan.copy_destinations.tolist()) == ([1], [2])
    assert (plan.step, plan.slots.tolist(), plan.num_tokens.tolist()) == (1, [3], [2])
    assert plan.released_slots.dtype == np.int64


def test_unset_and_zero_are_told_apart() -> None:
    bare = plan_of(worker_pb2.StepPlan(new_sequences=[worker_pb2.NewSequence()]))
    params = bare.new_sequences[0].params
    assert (params.logprobs, params.prompt_logprobs, params.adapter_id, params.grammar_id) == (None,) * 4


def test_a_result_comes_through_whole() -> None:
    scores = TokenScores(
        np.array([-1.5], dtype=np.float32),
        ints([4]),
        ints([7, 9]).reshape(1, 2),
        np.array([[-0.5, -1.0]], dtype=np.float32),
    )
    message = result_message(
        StepResult(
            step=7,
            num_computed=ints([5, 6, 2**31]),
            num_outputs=ints([1, 0, 1]),
            token_ids=ints([11, 12]),
            ends=(RowEnd(0, EndReason.STOP, 0), RowEnd(2, EndReason.LENGTH)),
            failures=(RowFailure(1, RequestFailure(FailureCode.INTERNAL, "why", "field")),),
            scores=(RowScores(2, 30, scores),),
            step_us=5,
            idle_us=6,
        )
    ).result
    assert (message.step, message.step_us, message.idle_us) == (7, 5, 6)
    assert list(message.num_computed_tokens) == [5, 6, 2**31]
    assert (list(message.num_output_tokens), list(message.token_ids)) == ([1, 0, 1], [11, 12])
    assert message.ends[0].reason == sequence_pb2.END_REASON_STOP
    assert message.ends[0].HasField("stop_token_id")
    assert not message.ends[1].HasField("stop_token_id")
    assert (message.failures[0].row, message.failures[0].failure.code) == (1, 13)
    told = message.scores[0].scores
    assert (told.position, told.width, list(told.ranks)) == (30, 2, [4])
    assert (list(told.top_token_ids), list(told.top_logprobs)) == ([7, 9], [-0.5, -1.0])
