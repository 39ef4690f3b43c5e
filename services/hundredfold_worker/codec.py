"""Between the internal protocol's messages and the engine's arrays. Runs on the gRPC thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.internal.v1 import sequence_pb2, worker_pb2
from hundredfold_worker.engine.plan import (
    Branch,
    EndReason,
    Ints,
    NewSequence,
    RowScores,
    StepPlan,
    StepResult,
)
from hundredfold_worker.sampling.params import SamplingParams

_REASONS = {EndReason.STOP: sequence_pb2.END_REASON_STOP, EndReason.LENGTH: sequence_pb2.END_REASON_LENGTH}


def plan_of(message: worker_pb2.StepPlan) -> StepPlan:
    """A plan as the engine reads it; nothing is checked here."""
    return StepPlan(
        step=message.step,
        released_slots=_ints(message.released_slots),
        new_sequences=tuple(_new_sequence(new) for new in message.new_sequences),
        branches=tuple(_branch(branch) for branch in message.branches),
        grown_slots=_ints(message.grown_slots),
        grown_counts=_ints(message.grown_counts),
        grown_block_ids=_ints(message.grown_block_ids),
        copy_sources=_ints([copy.source for copy in message.copies]),
        copy_destinations=_ints([copy.destination for copy in message.copies]),
        slots=_ints(message.slots),
        num_tokens=_ints(message.num_tokens),
        num_draft_tokens=_ints(message.num_draft_tokens),
        num_repeats=message.num_repeats,
    )


def _new_sequence(new: worker_pb2.NewSequence) -> NewSequence:
    return NewSequence(
        slot=new.slot,
        sequence_id=new.sequence_id,
        prompt=_ints(new.prompt_token_ids),
        output=_ints(new.output_token_ids),
        block_ids=_ints(new.block_ids),
        num_computed=new.num_computed_tokens,
        params=_params(new.params, new.choice_index, new.num_candidates),
    )


def _branch(branch: worker_pb2.Branch) -> Branch:
    return Branch(
        slot=branch.slot,
        source_slot=branch.source_slot,
        token_id=branch.token_id,
        kept_blocks=branch.kept_blocks,
        block_ids=_ints(branch.block_ids),
    )


def _params(params: sequence_pb2.SequenceParams, choice_index: int, num_candidates: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        choice_index=choice_index,
        stop_token_ids=tuple(params.stop_token_ids),
        bad_words=tuple(tuple(word.token_ids) for word in params.bad_words),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        bias_ids=tuple(params.bias_token_ids),
        bias_values=tuple(params.bias_values),
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        vocab_limit=params.vocab_limit,
        adapter_id=params.adapter_id if params.HasField("adapter_id") else None,
        grammar_id=params.grammar_id if params.HasField("grammar_id") else None,
        num_candidates=num_candidates,
    )


def result_message(result: StepResult) -> worker_pb2.ExecuteResponse:
    """A result as the scheduler reads it."""
    message = worker_pb2.StepResult(
        step=result.step,
        num_computed_tokens=result.num_computed.tolist(),
        num_output_tokens=result.num_outputs.tolist(),
        token_ids=result.token_ids.tolist(),
        num_drafted_tokens=result.num_drafted.tolist(),
        num_repeats=result.num_repeats,
        step_us=result.step_us,
        idle_us=result.idle_us,
    )
    for end in result.ends:
        message.ends.add(row=end.row, reason=_REASONS[end.reason], stop_token_id=end.stop_token_id)
    for row_failure in result.failures:
        failure = row_failure.failure
        message.failures.add(
            row=row_failure.row,
            failure=sequence_pb2.Failure(code=failure.code, message=failure.message, field=failure.field),
        )
    for scores in result.scores:
        message.scores.add(row=scores.row, scores=_scores_message(scores))
    for found in result.candidates:
        message.candidates.add(
            row=found.row,
            token_ids=found.candidates.token_ids.tolist(),
            logprobs=found.candidates.logprobs.tolist(),
        )
    return worker_pb2.ExecuteResponse(result=message)


def _scores_message(row: RowScores) -> sequence_pb2.Scores:
    return sequence_pb2.Scores(
        position=row.position,
        logprobs=row.scores.logprobs.tolist(),
        ranks=row.scores.ranks.tolist(),
        width=row.scores.top_ids.shape[1],
        top_token_ids=row.scores.top_ids.ravel().tolist(),
        top_logprobs=row.scores.top_logprobs.ravel().tolist(),
    )


def _ints(values: Any) -> Ints:
    ints: Ints = np.array(values, dtype=np.int64)
    return ints
