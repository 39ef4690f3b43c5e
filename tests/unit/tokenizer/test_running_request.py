"""One running request against what a scheduler may say: what counts, what is dropped, when it is over."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold.rpc import RequestError
from hundredfold.telemetry import start_request_span
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.output.choice import TextRules
from hundredfold_tokenizer.output.outbox import Outbox, Piece
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.requests.demux import BadMessage, deliver
from hundredfold_tokenizer.requests.running import RunningRequest
from hundredfold_tokenizer.validation.fields import check_envelope
from hundredfold_tokenizer.validation.request import GenerationRequest, Received, sequence_params
from hundredfold_tokenizer.validation.sampling import check_sampling
from hundredfold_tokenizer.vocabulary import Vocabulary

STOP, LENGTH = sequence_pb2.END_REASON_STOP, sequence_pb2.END_REASON_LENGTH


def running(vocabulary: Vocabulary, received: Received | None = None, **sampling: Any) -> RunningRequest:
    checked = check_sampling(pb.SamplingParams(**{"max_tokens": 20, "seed": 1, **sampling}), {}, 512)
    params = sequence_params(
        checked, max_tokens=checked.max_tokens or 20, eos_ids=frozenset({2}), bad_words=[], vocab_limit=0
    )
    request = GenerationRequest(
        envelope=check_envelope(pb.GenerateRequest(), "unix:"),
        operation="text_completion",
        prompt=array("I", [5, 6, 7]),
        sampling=checked,
        max_tokens=checked.max_tokens or 20,
        params=params,
        received={} if received is None else {0: received},
    )
    rules = TextRules(
        vocabulary.table, checked.stop, checked.include_stop, checked.min_tokens, True, False, False
    )
    outbox = Outbox(UnreadBudget(10**9), None, checked.logprobs)
    span = start_request_span("test", "")
    return RunningRequest(7, request, rules, outbox, arrived=0.0, deadline=None, span=span)


async def output(request: RunningRequest) -> tuple[str, list[int], pb.Finished | None]:
    text, ids, finished = "", [], None
    while (item := await request.outbox.read()) is not None:
        if isinstance(item, Piece):
            text += item.text
            ids += item.token_ids
        elif isinstance(item, pb.Finished):
            finished = item
    return text, ids, finished


def message(*rows: tuple[int, Sequence[int]], **more: Any) -> scheduler_pb2.Outputs:
    return scheduler_pb2.Outputs(
        stream_ids=[7] * len(rows),
        offsets=[offset for offset, _ in rows],
        counts=[len(ids) for _, ids in rows],
        token_ids=[token_id for _, ids in rows for token_id in ids],
        **more,
    )


def ended(reason: Any, stop_id: int | None = None, index: int = 0) -> scheduler_pb2.FinishedChoice:
    done = scheduler_pb2.FinishedChoice(stream_id=7, index=index, reason=reason)
    if stop_id is not None:
        done.stop_token_id = stop_id
    return done


async def test_nothing_after_the_end(bpe: Vocabulary) -> None:
    request = running(bpe)
    deliver(message((0, [65, 66]), finished=[ended(LENGTH)]), {7: request})
    deliver(message((2, [67]), finished=[ended(STOP, 2)]), {7: request})
    assert request.take_failure(sequence_pb2.Failure(code=13)) is None
    text, ids, finished = await output(request)
    assert (len(text) > 0, ids) == (True, [65, 66])
    assert finished is not None
    assert finished.reason == pb.FINISH_REASON_LENGTH


async def test_no_more_than_was_asked_for(bpe: Vocabulary) -> None:
    request = running(bpe, max_tokens=3)
    deliver(message((0, [65] * 10), finished=[ended(LENGTH)]), {7: request})
    _, ids, finished = await output(request)
    assert ids == [65] * 3
    assert finished is not None
    assert finished.usage.completion_tokens == 3


@pytest.mark.parametrize(
    "bad",
    [
        message((1, [65])),
        message((0, [65]), indexes=[1]),
        scheduler_pb2.Outputs(finished=[ended(STOP, index=1)]),
        scheduler_pb2.Outputs(finished=[ended(0)]),
        scheduler_pb2.Outputs(finished=[ended(9)]),
    ],
)
async def test_what_cannot_be_ends_the_request(bpe: Vocabulary, bad: scheduler_pb2.Outputs) -> None:
    request = running(bpe)
    deliver(bad, {7: request})
    with pytest.raises(RequestError, match="cannot be used"):
        await output(request)


@pytest.mark.parametrize(
    "bad",
    [
        scheduler_pb2.Outputs(stream_ids=[7], offsets=[0], counts=[2], token_ids=[1]),
        scheduler_pb2.Outputs(stream_ids=[7], counts=[1], token_ids=[1]),
        scheduler_pb2.Outputs(stream_ids=[7, 7], indexes=[0], offsets=[0, 0], counts=[0, 0]),
        scheduler_pb2.Outputs(token_ids=[1]),
    ],
)
def test_a_message_that_does_not_fit_together(bpe: Vocabulary, bad: scheduler_pb2.Outputs) -> None:
    with pytest.raises(BadMessage):
        deliver(bad, {7: running(bpe)})


async def test_rows_of_strangers_are_dropped(bpe: Vocabulary) -> None:
    """Item 22: outputs of a request that is gone are nobody's."""
    request = running(bpe)
    strangers = scheduler_pb2.Outputs(
        stream_ids=[99, 7], offsets=[3, 0], counts=[2, 1], token_ids=[1, 2, 65],
        finished=[scheduler_pb2.FinishedChoice(stream_id=98, reason=STOP)],
    )  # fmt: skip
    assert deliver(strangers, {7: request}) == []
    assert request.num_tokens == 1


async def test_a_failure_after_the_text_is_complete(bpe: Vocabulary) -> None:
    """A stop string has ended the answer: whatever happens to the rest of the work does not matter."""
    raw = list(bpe.table.raw)
    a, b = raw.index(b"A"), raw.index(b"B")
    request = running(bpe, stop=["B"])
    assert deliver(message((0, [a, b, a])), {7: request}) == [(request, request.choices[0])]
    request.take_failure(sequence_pb2.Failure(code=14, message="gone"))
    text, ids, finished = await output(request)
    assert (text, ids) == ("A", [a, b])
    assert finished is not None
    assert finished.stop_string == "B"


@pytest.mark.parametrize(
    ("ids", "sampling", "reason", "stop_id"),
    [
        ([65, 2], {}, pb.FINISH_REASON_STOP, 2),
        ([65] * 20, {}, pb.FINISH_REASON_LENGTH, None),
        ([65, 66], {"stop_token_ids": [66]}, pb.FINISH_REASON_STOP, 66),
        ([65, 2], {"ignore_eos": True}, None, None),
        ([65, 2], {"min_tokens": 2}, None, None),
        ([65, 2], {"min_tokens": 1}, pb.FINISH_REASON_STOP, 2),
        ([], {}, None, None),
    ],
)
async def test_settling_what_needs_no_scheduler(
    bpe: Vocabulary, ids: list[int], sampling: dict[str, Any], reason: Any, stop_id: int | None
) -> None:
    """Ids that are here may say that the answer has ended, though the message that would say so was lost."""
    request = running(bpe, **sampling)
    if ids:
        deliver(message((0, ids)), {7: request})
    assert request.settle() is (reason is not None)
    if reason is not None:
        _, _, finished = await output(request)
        assert finished is not None
        assert finished.reason == reason
        assert (finished.stop_token_id if finished.HasField("stop_token_id") else None) == stop_id


def test_submissions_tell_what_is_here(bpe: Vocabulary) -> None:
    request = running(bpe, Received((65, 66), 1), prompt_logprobs=2)
    submit = request.submission(2.5)
    assert list(submit.prior[0].token_ids) == [65, 66]
    assert submit.age_us == 2_500_000
    assert not submit.params.HasField("prompt_logprobs")  # those were delivered before the first token
    assert submit.skip_prefix_cache
    fresh = running(bpe, prompt_logprobs=2).submission(0.0)
    assert fresh.params.prompt_logprobs == 2
    assert not fresh.prior


async def test_missing_scores_are_made_up(bpe: Vocabulary) -> None:
    """One entry per token id, whatever the scheduler left out."""
    request = running(bpe, logprobs=1)
    deliver(message((0, [65, 66]), finished=[ended(LENGTH)]), {7: request})
    items = []
    while (item := await request.outbox.read()) is not None:
        items.append(item)
    assert isinstance(items[0], Piece)
    assert [score.logprob for score in items[0].scores] == [-9999.0, -9999.0]


def row(index: int, offset: int, ids: Sequence[int]) -> scheduler_pb2.Outputs:
    return message((offset, ids), indexes=[index])


async def pieces_of(request: RunningRequest) -> tuple[dict[int, list[int]], list[int]]:
    """Ids of each choice, and the indexes of the ends in their order."""
    ids: dict[int, list[int]] = {}
    ends = []
    while (item := await request.outbox.read()) is not None:
        if isinstance(item, Piece):
            assert item.index not in ends, "something follows a choice's end"
            ids.setdefault(item.index, []).extend(item.token_ids)
        elif isinstance(item, pb.Finished):
            ends.append(item.index)
    return ids, ends


async def test_each_choice_ends_once_and_by_itself(bpe: Vocabulary) -> None:
    """Report 105: a stop string ends its choice alone; the request is over with the last one."""
    raw = list(bpe.table.raw)
    a, b = raw.index(b"A"), raw.index(b"B")
    request = running(bpe, n=3, stop=["B"])
    deliver(row(0, 0, [a]), {7: request})
    assert deliver(row(1, 0, [a, b, a]), {7: request}) == [(request, request.choices[1])]
    deliver(row(2, 0, [a, a]), {7: request})
    deliver(scheduler_pb2.Outputs(finished=[ended(STOP, index=1)]), {7: request})
    assert not request.ended
    deliver(row(0, 1, [a]), {7: request})
    deliver(scheduler_pb2.Outputs(finished=[ended(LENGTH, index=i) for i in (2, 2, 0)]), {7: request})
    assert request.ended
    assert request.usage == pb.Usage(prompt_tokens=3, completion_tokens=6)
    ids, ends = await pieces_of(request)
    assert ids == {0: [a, a], 1: [a, b], 2: [a, a]}
    assert ends == [1, 2, 0]


async def test_a_failure_ends_all_choices(bpe: Vocabulary) -> None:
    request = running(bpe, n=2)
    deliver(row(1, 0, [65]), {7: request})
    deliver(scheduler_pb2.Outputs(finished=[ended(LENGTH, index=1)]), {7: request})
    request.take_failure(sequence_pb2.Failure(code=13, message="broken"))
    with pytest.raises(RequestError, match="broken"):
        await output(request)


def test_choices_are_submitted_again_by_index(bpe: Vocabulary) -> None:
    """An ended one is named as such, one without ids not at all; beams begin anew."""
    request = running(bpe, n=3)
    deliver(row(1, 0, [65, 66]), {7: request})
    deliver(row(2, 0, [67]), {7: request})
    deliver(scheduler_pb2.Outputs(finished=[ended(LENGTH, index=2)]), {7: request})
    submit = request.submission(0.0)
    assert submit.n == 3
    assert [(prior.index, list(prior.token_ids), prior.finished) for prior in submit.prior] == [
        (1, [65, 66], False),
        (2, [], True),
    ]
    beams = running(bpe, Received((65, 66), 1), n=2, beam_width=4, length_penalty=0.5)
    submit = beams.submission(0.0)
    assert (submit.beam_width, submit.length_penalty, submit.n) == (4, 0.5, 2)
    assert not submit.prior
    assert running(bpe, beam_width=1).submission(0.0).beam_width == 0


@pytest.mark.parametrize("ids", [(65,) * 20, (65, 2)])
async def test_all_of_a_beam_is_here_but_its_score(bpe: Vocabulary, ids: tuple[int, ...]) -> None:
    """A client that lost only the end of the best beam: the scheduler alone knows the score."""
    request = running(bpe, Received(ids, 0), beam_width=4)
    assert not request.settle()
    done = ended(LENGTH if len(ids) == 20 else STOP, None if len(ids) == 20 else 2)
    done.beam_score = -0.5
    deliver(message((0, ids), finished=[done]), {7: request})
    assert request.settle()
    _, again, finished = await output(request)
    assert again == []
    assert finished is not None
    assert finished.beam_score == -0.5
    assert running(bpe, Received(ids, 0), beam_width=1).settle()  # a single beam has no score


async def test_beams_that_come_again_are_dropped(bpe: Vocabulary) -> None:
    """A client that got part of the best beam gets the rest of it, once."""
    request = running(bpe, Received((65, 66), 1), n=2, beam_width=4)
    done = [ended(LENGTH, index=i) for i in (0, 1)]
    done[0].beam_score = -0.5
    deliver(message((0, [65, 66, 67]), (0, [70]), indexes=[0, 1], finished=done), {7: request})
    assert request.finished[0].beam_score == -0.5
    ids, ends = await pieces_of(request)
    assert ids == {0: [67], 1: [70]}
    assert ends == [0, 1]
