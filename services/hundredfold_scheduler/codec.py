"""Between the internal protocol's messages and the core's own types; packed on both sides."""

from __future__ import annotations

import math
from array import array
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2, worker_pb2
from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import WorkerProtocolError
from hundredfold_scheduler.core.outbox import FinishedChoice, OutputBatch
from hundredfold_scheduler.core.request import Submission
from hundredfold_scheduler.core.step import (
    Candidates,
    EndReason,
    NewSequence,
    RowCandidates,
    RowEnd,
    RowFailure,
    RowScores,
    Scores,
    StepPlan,
    StepResult,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_M = TypeVar("_M", bound=Message)
_MAX_STATUS = 16
_SELDOM_FILLED = ("released_slots", "grown_slots", "grown_counts", "grown_block_ids", "num_draft_tokens")
"""Packed lists of a plan, beside those of its rows."""
_REASONS = {EndReason.STOP: sequence_pb2.END_REASON_STOP, EndReason.LENGTH: sequence_pb2.END_REASON_LENGTH}


def submission_of(submit: scheduler_pb2.Submit) -> Submission:
    """A request as the core sees it. What this release cannot do is named in ``unsupported``."""
    # A copy: a part of a message keeps the whole of it in memory, prompt included.
    params = sequence_pb2.SequenceParams()
    params.CopyFrom(submit.params)
    return Submission(
        stream_id=submit.stream_id,
        request_id=submit.request_id,
        prompt=array("I", submit.prompt_token_ids),
        max_tokens=params.max_tokens,
        params=params,
        stop_token_ids=frozenset(params.stop_token_ids),
        n=max(1, submit.n),
        priors={prior.index: array("I", prior.token_ids) for prior in submit.prior if not prior.finished},
        finished=frozenset(prior.index for prior in submit.prior if prior.finished),
        beams=_beams(submit),
        priority=submit.priority,
        tenant=submit.tenant,
        adapter=params.adapter_id,
        cache_salt=submit.cache_salt,
        skip_prefix_cache=submit.skip_prefix_cache,
        deadline_s=submit.deadline_ms / 1e3 if submit.deadline_ms else None,
        age_s=submit.age_us / 1e6,
        traceparent=submit.traceparent,
        accepted=submit.accepted,
        unsupported=_unsupported(submit),
    )


def _beams(submit: scheduler_pb2.Submit) -> BeamTerms | None:
    if not submit.beam_width:
        return None
    return BeamTerms(submit.beam_width, submit.length_penalty, submit.early_stopping)


def _unsupported(submit: scheduler_pb2.Submit) -> str:
    """The public name of the first field whose feature comes later. The door refuses them too."""
    params = submit.params
    asked = {
        "adapter_id": params.HasField("adapter_id"),
        "grammar": params.HasField("grammar_id"),
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")


def outputs_message(batch: OutputBatch) -> scheduler_pb2.AttachResponse:
    """What a replica is told."""
    response = scheduler_pb2.AttachResponse()
    outputs = response.outputs  # filled in place: a message given to another is copied
    outputs.SetInParent()
    outputs.stream_ids.extend(batch.stream_ids)
    if any(batch.indexes):
        outputs.indexes.extend(batch.indexes)
    outputs.offsets.extend(batch.offsets)
    outputs.counts.extend(batch.counts)
    outputs.token_ids.extend(batch.token_ids)
    outputs.finished.extend(map(_finished_message, batch.finished))
    for stream_id, failure in batch.failed:
        outputs.failed.add(stream_id=stream_id, failure=_message(sequence_pb2.Failure, failure))
    for stream_id, index, scores in batch.scores:
        outputs.scores.add(stream_id=stream_id, index=index, scores=_message(sequence_pb2.Scores, scores))
    return response


def _finished_message(finished: FinishedChoice) -> scheduler_pb2.FinishedChoice:
    account = _message(scheduler_pb2.ChoiceAccount, finished.account)
    reason = _REASONS[finished.reason]
    return _message(scheduler_pb2.FinishedChoice, finished, reason=reason, account=account)


def plan_message(plan: StepPlan) -> worker_pb2.ExecuteRequest:
    """A step as the worker reads it."""
    request = worker_pb2.ExecuteRequest()
    message = request.plan
    message.step = plan.step
    message.slots.extend(plan.slots)
    message.num_tokens.extend(plan.num_tokens)
    message.num_repeats = plan.num_repeats
    for name in _SELDOM_FILLED:
        if values := getattr(plan, name):
            getattr(message, name).extend(values)
    message.new_sequences.extend(map(_new_sequence_message, plan.new_sequences))
    message.branches.extend(_message(worker_pb2.Branch, branch) for branch in plan.branches)
    for source, own in plan.copies:
        message.copies.add(source=source, destination=own)
    return request


def _new_sequence_message(new: NewSequence) -> worker_pb2.NewSequence:
    message = _message(worker_pb2.NewSequence, new, prompt_token_ids=new.prompt, output_token_ids=new.output)
    message.params.max_tokens = new.max_tokens
    if new.prompt_is_scored:
        message.params.ClearField("prompt_logprobs")
    return message


def _message(kind: type[_M], source: DataclassInstance, **other: Any) -> _M:
    """A message with what it and a dataclass have under the same name, and with ``other``."""
    common = {
        name: getattr(source, name) for name in _common(kind.DESCRIPTOR, type(source)) if name not in other
    }
    return kind(**common, **other)


@cache
def _common(kind: Descriptor, source: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(source) if field.name in kind.fields_by_name)


def result_of(message: worker_pb2.StepResult) -> StepResult:
    """A step's result as the core sees it. Raises ``WorkerProtocolError`` for values that have no meaning."""
    return StepResult(
        step=message.step,
        num_computed_tokens=list(message.num_computed_tokens),
        num_output_tokens=list(message.num_output_tokens),
        token_ids=list(message.token_ids),
        ends=[
            RowEnd(end.row, _reason_of(end), end.stop_token_id if end.HasField("stop_token_id") else None)
            for end in message.ends
        ],
        failures=[_failure_of(failure) for failure in message.failures],
        scores=[RowScores(scores.row, _scores_of(scores.scores)) for scores in message.scores],
        candidates=[_candidates_of(found) for found in message.candidates],
        step_us=message.step_us,
        idle_us=message.idle_us,
        num_drafted_tokens=list(message.num_drafted_tokens),
        num_repeats=message.num_repeats,
    )


def _candidates_of(found: worker_pb2.RowCandidates) -> RowCandidates:
    count = len(found.token_ids)
    if not count or len(found.logprobs) != count or any(map(math.isnan, found.logprobs)):
        raise WorkerProtocolError(
            f"row {found.row} has {count} candidates with {len(found.logprobs)} log probabilities, "
            "which have to be numbers, one for each"
        )
    return RowCandidates(found.row, Candidates(list(found.token_ids), list(found.logprobs)))


def _reason_of(end: worker_pb2.RowEnd) -> EndReason:
    try:
        return EndReason(end.reason)
    except ValueError:
        raise WorkerProtocolError(f"row {end.row} ended for the unknown reason {end.reason}") from None


def _failure_of(failure: worker_pb2.RowFailure) -> RowFailure:
    reason = failure.failure
    if not 1 <= reason.code <= _MAX_STATUS:
        raise WorkerProtocolError(f"row {failure.row} failed with the unknown status {reason.code}")
    return RowFailure(failure.row, reason.code, reason.message, reason.field)


def _scores_of(scores: sequence_pb2.Scores) -> Scores:
    count = len(scores.logprobs)
    if len(scores.ranks) != count or not (
        len(scores.top_token_ids) == len(scores.top_logprobs) == count * scores.width
    ):
        raise WorkerProtocolError(
            f"scores of {count} tokens at width {scores.width} have {len(scores.ranks)} ranks, "
            f"{len(scores.top_token_ids)} likeliest ids and {len(scores.top_logprobs)} scores of these"
        )
    return Scores(
        position=scores.position,
        logprobs=list(scores.logprobs),
        ranks=list(scores.ranks),
        width=scores.width,
        top_token_ids=list(scores.top_token_ids),
        top_logprobs=list(scores.top_logprobs),
    )
