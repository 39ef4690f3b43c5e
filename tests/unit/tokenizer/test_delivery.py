"""Unread output: merged when a reader is behind, paced when there are many, bounded in all."""

from __future__ import annotations

import asyncio
from array import array

import grpc
import pytest

from hundredfold.rpc import RequestError
from hundredfold.supervisor.cores import usable_cores
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.output.outbox import PIECE_TOKENS, Outbox, Piece, PromptScores
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.scores import TokenScore
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.settings import TokenizerSettings
from support.pace import in_time


def outbox(pacer: Pacer | None, budget: UnreadBudget | None = None, width: int | None = None) -> Outbox:
    return Outbox(budget if budget is not None else UnreadBudget(10**9), pacer, width)


async def read_all(box: Outbox) -> list[object]:
    items = []
    while (item := await box.read()) is not None:
        items.append(item)
    return items


async def test_first_token_at_once_then_merged() -> None:
    """DESIGN §3: first token at once, later ones together while the stream rests, within the bound."""
    pacer = Pacer(messages_per_s=10, max_delay_s=0.1)
    box = outbox(pacer)
    loop = asyncio.get_running_loop()
    began = loop.time()
    arrivals: list[tuple[float, int]] = []

    async def reader() -> None:
        while (item := await box.read()) is not None:
            assert isinstance(item, Piece)
            arrivals.append((loop.time() - began, len(item.token_ids)))

    task = asyncio.create_task(reader())
    await asyncio.sleep(0)
    for number in range(20):
        box.put_tokens(0, "x", [number], [])
        await asyncio.sleep(0.01)
    box.end()
    await task
    assert arrivals[0][1] == 1
    in_time(arrivals[0][0], 0.05, "the first")
    assert sum(count for _, count in arrivals) == 20
    assert len(arrivals) >= 3
    in_time(len(arrivals), 6, "what came in 200 ms, in arrivals a 100 ms apart,")
    box.leave()
    assert pacer.streams == 0


async def test_few_streams_are_not_slowed() -> None:
    pacer = Pacer(messages_per_s=1000, max_delay_s=1)
    box = outbox(pacer)
    counts: list[int] = []

    async def reader() -> None:
        while (item := await box.read()) is not None:
            assert isinstance(item, Piece)
            counts.append(len(item.token_ids))

    task = asyncio.create_task(reader())
    for number in range(20):
        box.put_tokens(0, "x", [number], [])
        await asyncio.sleep(0.005)
    box.end()
    await task
    assert sum(counts) == 20
    in_time(max(counts), 1, "a token each 5 ms")


async def test_rest_grows_with_streams_up_to_the_bound() -> None:
    pacer = Pacer(messages_per_s=100, max_delay_s=0.25)
    boxes = [outbox(pacer) for _ in range(10)]
    assert pacer.delay_s == pytest.approx(0.1)
    boxes += [outbox(pacer) for _ in range(90)]
    assert pacer.delay_s == 0.25
    for box in boxes:
        box.leave()
    assert pacer.streams == 0


def test_a_larger_machine_sends_more_messages() -> None:
    """Unless it is told how many: a message is the same share of a core everywhere."""
    assert TokenizerSettings().deltas_per_s == 100 * usable_cores()
    assert TokenizerSettings(max_deltas_per_s=7).deltas_per_s == 7


async def test_one_timer_wakes_all_that_are_due() -> None:
    pacer = Pacer(messages_per_s=1000, max_delay_s=0.05)
    boxes = [outbox(pacer) for _ in range(50)]
    tasks = [asyncio.create_task(read_all(box)) for box in boxes]
    await asyncio.sleep(0)
    for _ in range(5):
        for box in boxes:
            box.put_tokens(0, "x", [1], [])
        await asyncio.sleep(0.012)
    for box in boxes:
        box.end()
    done = await asyncio.gather(*tasks)
    for items in done:
        assert sum(len(item.token_ids) for item in items if isinstance(item, Piece)) == 5
    for box in boxes:
        box.leave()


async def test_streams_that_rest_are_woken_together() -> None:
    """A thousand streams that began at a thousand moments are due at five, the four of a rest and the last of
    the one before; none rests longer than told, and from then on none less.
    """
    pacer = Pacer(messages_per_s=100, max_delay_s=0.2)
    boxes = [outbox(pacer) for _ in range(1000)]
    for number, box in enumerate(boxes):
        box.last_read = 77.0 + 0.2 * number / 1000
    dues = [pacer.due(box) for box in boxes]
    assert len(set(dues)) <= 5
    rests = [due - box.last_read for due, box in zip(dues, boxes, strict=True)]
    assert 0.15 - 0.003 <= min(rests) <= max(rests) <= 0.2 + 0.003
    for box, due in zip(boxes, dues, strict=True):
        box.last_read = due + 0.000_5  # woken then, by one timer
    later = [pacer.due(box) for box in boxes]
    assert later == [pytest.approx(due + 0.2) for due in dues]
    for box in boxes:
        box.leave()


async def test_events_do_not_wait() -> None:
    pacer = Pacer(messages_per_s=1, max_delay_s=10)
    box = outbox(pacer)
    box.put_tokens(0, "a", [1], [])
    assert isinstance(await box.read(), Piece)
    box.put_tokens(0, "b", [2], [])
    box.put(pb.Finished(index=0))
    box.end()
    async with asyncio.timeout(5):  # of the ten that it could have rested
        rest = await read_all(box)
    assert [type(item) for item in rest] == [Piece, pb.Finished]


async def test_pieces_stay_small() -> None:
    """A reader far behind gets pieces that any client can take, and all of them."""
    box = outbox(Pacer(1000, 0))
    for number in range(3000):
        box.put_tokens(0, f"{number} ", [number], [])
    box.end()
    items = await read_all(box)
    pieces = [item for item in items if isinstance(item, Piece)]
    assert max(len(piece.token_ids) for piece in pieces) == PIECE_TOKENS
    assert [i for piece in pieces for i in piece.token_ids] == list(range(3000))
    assert "".join(piece.text for piece in pieces) == "".join(f"{number} " for number in range(3000))


async def test_many_tokens_at_once_are_split() -> None:
    box = outbox(Pacer(1000, 0), width=20)
    score = TokenScore(-1.0, 1, array("I", range(20)), array("f", [0.0] * 20))
    box.put_tokens(0, "text", list(range(100)), [score] * 100)
    box.end()
    pieces = [item for item in await read_all(box) if isinstance(item, Piece)]
    assert [i for piece in pieces for i in piece.token_ids] == list(range(100))
    assert all(len(piece.scores) == len(piece.token_ids) <= 24 for piece in pieces)
    assert [piece.text for piece in pieces] == [""] * (len(pieces) - 1) + ["text"]


async def test_a_client_never_holds_text_ahead_of_its_ids() -> None:
    """Wherever it is cut off, it may resume: a run that is split on top of another brings its text last."""
    box = outbox(Pacer(1000, 0))
    texts = {500: "a" * 500, 1700: "b" * 1200, 1800: "c" * 100}  # one character per id
    start = 0
    for end, text in texts.items():
        box.put_tokens(0, text, list(range(start, end)), [])
        start = end
    box.end()
    ids = chars = 0
    for item in await read_all(box):
        assert isinstance(item, Piece)
        ids += len(item.token_ids)
        chars += len(item.text)
        assert chars <= ids
    assert (ids, chars) == (1800, 1800)


async def test_a_whole_answer_wakes_its_reader_once() -> None:
    box = outbox(None)
    task = asyncio.create_task(read_all(box))
    await asyncio.sleep(0)
    for number in range(10):
        box.put_tokens(0, "x", [number], [])
        await asyncio.sleep(0)
        assert box.waiting
    box.put(pb.Finished(index=0))
    assert box.waiting
    box.end()
    assert [type(item) for item in await task] == [Piece, pb.Finished]


async def test_errors_replace_what_is_unread() -> None:
    budget = UnreadBudget(10**9)
    box = outbox(Pacer(1000, 0), budget)
    box.put_tokens(0, "x", [1], [])
    box.end(RequestError(grpc.StatusCode.INTERNAL, "no"))
    assert budget.num_bytes == 0
    with pytest.raises(RequestError, match="no"):
        await box.read()


async def test_the_largest_is_ended_when_all_is_too_much() -> None:
    """Item 137: past the cap the stream that is furthest behind ends, nobody else."""
    budget = UnreadBudget(50_000)
    pacer = Pacer(1000, 0)
    ended: list[int] = []
    boxes: list[Outbox] = []
    for index in range(5):
        box = outbox(pacer, budget)
        boxes.append(box)

        def end(index: int = index, box: Outbox = box) -> None:
            ended.append(index)
            box.end(RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too slow"))

        budget.join(box, end)
    for step in range(3000):
        for index, box in enumerate(boxes):
            if index != 3 and index not in ended and step % 10 == 0:
                box.put_tokens(0, "slow ", [step], [])
        if 3 not in ended:
            boxes[3].put_tokens(0, "fast and fast ", [step, step], [])
        budget.enforce()
        assert budget.num_bytes <= 50_000
    assert ended == [3]
    for box in boxes:
        box.leave()
    assert budget.num_bytes == 0
    assert len(budget) == 0


async def test_prompt_scores_count() -> None:
    budget = UnreadBudget(10**9)
    box = outbox(Pacer(1000, 0), budget)
    box.put(PromptScores([TokenScore(-1.0, 1, array("I"), array("f"))] * 10))
    assert budget.num_bytes >= 1000
    box.end()
    await read_all(box)
    assert budget.num_bytes == 0
