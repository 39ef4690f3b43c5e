"""Messages and core types, settings and a worker's limits, readiness, and the integrity check itself."""

from __future__ import annotations

import asyncio
from array import array

import pytest
from pydantic import ValidationError

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2, worker_pb2
from hundredfold_scheduler.codec import outputs_message, plan_message, result_of, submission_of
from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import Code, Failure, WorkerProtocolError
from hundredfold_scheduler.core.integrity import IntegrityError
from hundredfold_scheduler.core.outbox import Account, FinishedChoice, OutputBatch
from hundredfold_scheduler.core.step import (
    Branch,
    Candidates,
    EndReason,
    NewSequence,
    RowCandidates,
    Scores,
    StepPlan,
)
from hundredfold_scheduler.readiness import Readiness
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_scheduler.worker_limits import WorkerRefused, limits_in_force
from support.scheduler_harness import Harness, Received


def submit(**fields: object) -> scheduler_pb2.Submit:
    params = sequence_pb2.SequenceParams(max_tokens=9, stop_token_ids=[2])
    defaults = {"stream_id": 5, "request_id": "r", "prompt_token_ids": [1, 2, 3], "params": params, "n": 1}
    return scheduler_pb2.Submit(**(defaults | fields))  # type: ignore[arg-type]


def test_submission() -> None:
    prior = [scheduler_pb2.PriorOutput(index=0, token_ids=[7, 8])]
    read = submission_of(
        submit(prior=prior, priority=-3, cache_salt=b"s", deadline_ms=1500, age_us=2_000_000, tenant="t")
    )
    assert (read.stream_id, read.request_id, read.max_tokens, read.priority) == (5, "r", 9, -3)
    assert (read.prompt, read.priors) == (array("I", [1, 2, 3]), {0: array("I", [7, 8])})
    assert (read.deadline_s, read.age_s, read.cache_salt) == (1.5, 2.0, b"s")
    assert read.stop_token_ids == {2}
    assert read.unsupported == ""
    assert submission_of(submit()).deadline_s is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"params": sequence_pb2.SequenceParams(adapter_id="a")}, "adapter_id"),
        ({"params": sequence_pb2.SequenceParams(grammar_id="g")}, "grammar"),
    ],
)
def test_what_comes_later_is_refused_by_name(fields: dict[str, object], named: str) -> None:
    harness = Harness()
    received = harness.received[5] = Received()
    harness.scheduler.submit(harness.replica, submission_of(submit(**fields)), harness.now)
    harness.run()
    assert received.failure is not None
    assert received.failure.code == Code.UNIMPLEMENTED
    assert received.failure.field == named


def test_choices_and_beams() -> None:
    prior = [
        scheduler_pb2.PriorOutput(index=2, token_ids=[7]),
        scheduler_pb2.PriorOutput(index=0, finished=True),
    ]
    read = submission_of(submit(n=3, prior=prior))
    assert (read.n, read.priors, read.finished) == (3, {2: array("I", [7])}, frozenset({0}))
    assert (read.beams, read.num_seats) == (None, 2)
    beams = submission_of(submit(n=2, beam_width=4, length_penalty=0.5, early_stopping=True))
    assert beams.beams == BeamTerms(4, 0.5, early_stopping=True)
    assert beams.num_seats == 4


def test_a_submission_does_not_keep_its_message() -> None:
    """The parameters are a copy: a part of a message would keep prompt and all in memory."""
    message = submit()
    read = submission_of(message)
    message.params.max_tokens = 1
    assert read.params.max_tokens == 9  # type: ignore[attr-defined]


def test_plan() -> None:
    new = NewSequence(
        slot=3,
        sequence_id=44,
        prompt=array("I", [1, 2]),
        output=array("I", [5]),
        block_ids=[8, 9],
        num_computed_tokens=1,
        max_tokens=6,
        params=sequence_pb2.SequenceParams(max_tokens=100, prompt_logprobs=3, temperature=0.5),
        prompt_is_scored=True,
        choice_index=0,
        traceparent="tp",
        num_candidates=9,
    )
    plan = StepPlan(
        step=2,
        released_slots=[1],
        new_sequences=[new],
        branches=[Branch(3, 4, 7, 2, [13])],
        grown_slots=[4],
        grown_counts=[2],
        grown_block_ids=[11, 12],
        copies=[(12, 13)],
        slots=[3, 4],
        num_tokens=[2, 1],
    )
    message = plan_message(plan).plan
    assert (message.step, list(message.released_slots), list(message.slots)) == (2, [1], [3, 4])
    assert (list(message.grown_slots), list(message.grown_counts)) == ([4], [2])
    assert list(message.grown_block_ids) == [11, 12]
    assert message.branches[0] == worker_pb2.Branch(
        slot=3, source_slot=4, token_id=7, kept_blocks=2, block_ids=[13]
    )
    assert message.copies[0] == worker_pb2.BlockCopy(source=12, destination=13)
    assert message.new_sequences[0].num_candidates == 9
    (sent,) = message.new_sequences
    assert (list(sent.prompt_token_ids), list(sent.output_token_ids)) == ([1, 2], [5])
    assert (sent.params.max_tokens, sent.params.temperature) == (6, 0.5)
    assert not sent.params.HasField("prompt_logprobs")


def test_a_decode_step_of_256_is_small() -> None:
    """A plan of 256 decoding sequences, a sixteenth of them growing, and its result: each under 10 kB."""
    rows = list(range(256))
    plan = StepPlan(
        step=10**6,
        grown_slots=rows[:16],
        grown_counts=[1] * 16,
        grown_block_ids=[60_000] * 16,
        slots=rows,
        num_tokens=[1] * 256,
    )
    assert plan_message(plan).ByteSize() < 10_000
    result = worker_pb2.StepResult(
        step=10**6, num_computed_tokens=[5000] * 256, num_output_tokens=[1] * 256, token_ids=[49_000] * 256
    )
    assert result.ByteSize() < 10_000
    batch = OutputBatch([10**6] * 256, [0] * 256, [5000] * 256, [1] * 256, [49_000] * 256)
    assert outputs_message(batch).ByteSize() < 10_000


def test_result() -> None:
    message = worker_pb2.StepResult(
        step=3, num_computed_tokens=[5, 6], num_output_tokens=[1, 0], token_ids=[9], step_us=10
    )
    message.ends.add(row=0, reason=sequence_pb2.END_REASON_STOP, stop_token_id=0)
    message.failures.add(row=1, failure=sequence_pb2.Failure(code=13, message="m", field="f"))
    scores = sequence_pb2.Scores(
        position=4, logprobs=[-1.0], ranks=[2], width=1, top_token_ids=[7], top_logprobs=[-0.5]
    )
    message.scores.add(row=0, scores=scores)
    message.candidates.add(row=1, token_ids=[5, 6], logprobs=[-0.5, -1.0])
    result = result_of(message)
    assert (result.step, result.token_ids, result.step_us) == (3, [9], 10)
    assert (result.ends[0].reason, result.ends[0].stop_token_id) == (EndReason.STOP, 0)
    assert (result.failures[0].code, result.failures[0].field) == (13, "f")
    assert result.scores[0].scores == Scores(4, [-1.0], [2], 1, [7], [-0.5])
    assert result.candidates == [RowCandidates(1, Candidates([5, 6], [-0.5, -1.0]))]


def test_results_without_meaning_are_refused() -> None:
    unknown_reason = worker_pb2.StepResult()
    unknown_reason.ends.add(row=0)
    ok_failure = worker_pb2.StepResult()
    ok_failure.failures.add(row=0)
    ragged = worker_pb2.StepResult()
    ragged.scores.add(row=0, scores=sequence_pb2.Scores(logprobs=[-1.0]))
    no_candidates = worker_pb2.StepResult()
    no_candidates.candidates.add(row=0)
    no_number = worker_pb2.StepResult()
    no_number.candidates.add(row=0, token_ids=[1], logprobs=[float("nan")])
    for message in (unknown_reason, ok_failure, ragged, no_candidates, no_number):
        with pytest.raises(WorkerProtocolError):
            result_of(message)


def test_outputs() -> None:
    account = Account(cached_tokens=1, queue_us=2, prefill_us=3, decode_us=4, preemptions=5)
    batch = OutputBatch(
        [1, 1],
        [0, 3],
        [2, 0],
        [1, 1],
        [9, 8],
        [(1, 3, Scores(0, [-1.0], [1], 0, [], []))],
        [FinishedChoice(1, 3, EndReason.LENGTH, None, account, beam_score=-0.5)],
        [(2, Failure(Code.RESOURCE_EXHAUSTED, "full", retry_after_ms=250))],
    )
    outputs = outputs_message(batch).outputs
    assert (list(outputs.stream_ids), list(outputs.indexes)) == ([1, 1], [0, 3])
    assert list(outputs.token_ids) == [9, 8]
    assert (outputs.scores[0].index, outputs.finished[0].index) == (3, 3)
    assert outputs.finished[0].beam_score == -0.5
    assert not outputs_message(OutputBatch([1], [0], [2], [1], [9])).outputs.indexes
    assert outputs.finished[0].reason == sequence_pb2.END_REASON_LENGTH
    assert not outputs.finished[0].HasField("stop_token_id")
    assert outputs.finished[0].account.preemptions == 5
    assert (outputs.failed[0].failure.code, outputs.failed[0].failure.retry_after_ms) == (8, 250)
    assert list(outputs.scores[0].scores.logprobs) == [-1.0]


def worker_info(**fields: object) -> worker_pb2.GetWorkerInfoResponse:
    defaults: dict[str, object] = {
        "protocol_version": 1,
        "incarnation": "i",
        "ready": True,
        "model_fingerprint": "a" * 64,
        "max_model_len": 2048,
        "vocab_size": 100,
        "block_size": 16,
        "num_blocks": 50,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
    }
    return worker_pb2.GetWorkerInfoResponse(**(defaults | fields))  # type: ignore[arg-type]


def test_settings_lower_a_workers_limits_and_never_raise_them() -> None:
    own = limits_in_force(worker_info(), SchedulerSettings(), None)
    assert (own.max_model_len, own.max_num_seqs, own.max_num_batched_tokens) == (2048, 64, 512)
    lower = SchedulerSettings(max_model_len=128, max_num_seqs=4, max_num_batched_tokens=32)
    lowered = limits_in_force(worker_info(), lower, "a" * 64)
    assert (lowered.max_model_len, lowered.max_num_seqs, lowered.max_num_batched_tokens) == (128, 4, 32)
    higher = SchedulerSettings(max_model_len=9999, max_num_seqs=999, max_num_batched_tokens=9999)
    assert limits_in_force(worker_info(), higher, None) == own
    assert (
        limits_in_force(worker_info(), SchedulerSettings(max_num_batched_tokens=16), None).max_num_seqs == 16
    )


def test_a_workers_window_is_planned_with() -> None:
    assert limits_in_force(worker_info(sliding_window=48), SchedulerSettings(), None).sliding_window == 48
    assert limits_in_force(worker_info(), SchedulerSettings(), None).sliding_window is None


@pytest.mark.parametrize(
    ("info", "settings", "fingerprint", "named"),
    [
        ({"protocol_version": 2}, {}, None, "protocol 2"),
        ({}, {}, "b" * 64, "fingerprint"),
        ({}, {"block_size": 32}, None, "block_size is 16, the setting says 32"),
        ({"num_blocks": 0}, {}, None, "num_blocks = 0"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused(
    info: dict[str, object], settings: dict[str, object], fingerprint: str | None, named: str
) -> None:
    with pytest.raises(WorkerRefused, match=named):
        limits_in_force(worker_info(**info), SchedulerSettings.model_validate(settings), fingerprint)


@pytest.mark.parametrize(
    "wrong", [{"block_size": 8}, {"block_size": 512}, {"max_plans_in_flight": 3}, {"max_num_seqs": 0}]
)
def test_settings_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SchedulerSettings.model_validate(wrong)


async def test_readiness_survives_a_lost_worker_for_the_grace() -> None:
    told: list[tuple[bool, str]] = []
    readiness = Readiness(lambda ready, reason: told.append((ready, reason)), grace_s=0.5)
    readiness.explain("loading")
    readiness.connected()
    readiness.lost()
    readiness.explain("gone")
    assert told == [(False, "loading"), (True, "")]
    readiness.connected()
    await asyncio.sleep(0.7)
    assert told[-1] == (True, "")
    readiness.lost()
    readiness.explain("gone for good")
    assert told[-1] == (True, "")
    await asyncio.sleep(0.7)
    assert told[-1] == (False, "gone for good")


def test_the_integrity_check_finds_what_it_is_for() -> None:
    """A check that cannot fail holds nothing: each account is falsified once."""

    def busy() -> Harness:
        harness = Harness()
        for i in range(3):
            harness.submit(i, [3 + i] * 40, 20, deadline_s=1e6)
        for _ in range(3):
            harness.turn()
        harness.scheduler.check_integrity()
        return harness

    def worker_of(harness: Harness) -> object:
        return harness.seats

    def leak_block(harness: Harness) -> None:
        worker_of(harness).cache.pool._free.pop()  # type: ignore[attr-defined]

    def lose_reference(harness: Harness) -> None:
        next(iter(harness.seats.running.values())).blocks.pop()

    def leak_slot(harness: Harness) -> None:
        worker_of(harness).slots.take()  # type: ignore[attr-defined]

    def leak_request(harness: Harness) -> None:
        del harness.replica.requests[0]

    def leak_deadline(harness: Harness) -> None:
        harness.scheduler.state.requests["request-0"].deadline = None

    def leak_promise(harness: Harness) -> None:
        worker_of(harness).cache.promised += 1  # type: ignore[attr-defined]

    def miscount_tokens(harness: Harness) -> None:
        harness.scheduler.state.waiting.num_tokens += 1

    for falsify in (
        leak_block,
        lose_reference,
        leak_slot,
        leak_request,
        leak_deadline,
        leak_promise,
        miscount_tokens,
    ):
        harness = busy()
        falsify(harness)
        with pytest.raises(IntegrityError):
            harness.scheduler.check_integrity()
