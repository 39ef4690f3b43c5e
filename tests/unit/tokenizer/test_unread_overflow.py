"""Too much unread output, most of it of a request that has finished: it goes, and the event loop goes on."""

from __future__ import annotations

from array import array
from functools import partial

import grpc
import pytest

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold.rpc import RequestError
from hundredfold.telemetry import ServiceMetrics
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.chat.process import RenderProcess
from hundredfold_tokenizer.chat.template import ChatTemplate
from hundredfold_tokenizer.defaults import CheckpointDefaults
from hundredfold_tokenizer.door import Caller, Door
from hundredfold_tokenizer.encoding import EncodePool
from hundredfold_tokenizer.ledger import Ledger
from hundredfold_tokenizer.output.outbox import Outbox, PromptScores
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.scores import TokenScore
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.prompts import Prompts
from hundredfold_tokenizer.requests.attachment import Attachment
from hundredfold_tokenizer.requests.demux import deliver
from hundredfold_tokenizer.requests.registry import Registry
from hundredfold_tokenizer.settings import TokenizerSettings
from hundredfold_tokenizer.validation.request import ModelLimits
from hundredfold_tokenizer.vocabulary import Vocabulary

pytestmark = pytest.mark.timeout(20)  # the fault under test is a loop without end


def no_channel() -> grpc.aio.Channel:
    raise NotImplementedError("this attachment never connects")


def door_of(vocabulary: Vocabulary, budget: UnreadBudget) -> tuple[Door, Ledger]:
    """A door whose scheduler is the test itself."""
    attachment = Attachment(
        no_channel,
        scheduler_pb2.AttachHello(),
        grace_s=1,
        on_change=lambda: None,
        after_step=budget.enforce,
    )
    attachment.limits = ModelLimits(max_model_len=10_000, vocab_size=512, max_cache_tokens=10_000)
    template = ChatTemplate(vocabulary, RenderProcess({}, timeout_s=1, max_chars=100), "tiny")
    ledger = Ledger(ServiceMetrics("tokenizer", TokenizerSettings()), "tiny")
    door = Door(
        model="tiny",
        vocabulary=vocabulary,
        defaults=CheckpointDefaults(),
        prompts=Prompts(vocabulary, template, EncodePool(1), 1000),
        attachment=attachment,
        registry=Registry(10),
        budget=budget,
        ledger=ledger,
    )
    return door, ledger


async def test_a_delta_and_its_finish_in_one_step(bpe: Vocabulary) -> None:
    """The request has ended when the step is checked; its client still gets the error, the books say so."""
    budget = UnreadBudget(1000)
    door, ledger = door_of(bpe, budget)
    asked = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6]), sampling=pb.SamplingParams(max_tokens=400))
    async with door.open(asked, Caller("unix:", None), Pacer(1000, 0)) as running:
        step = scheduler_pb2.Outputs(
            stream_ids=[running.stream_id],
            offsets=[0],
            counts=[400],
            token_ids=[65] * 400,
            finished=[
                scheduler_pb2.FinishedChoice(
                    stream_id=running.stream_id, reason=sequence_pb2.END_REASON_LENGTH
                )
            ],
        )
        deliver(step, {running.stream_id: running})
        assert running.ended
        assert budget.num_bytes > budget.limit
        budget.enforce()
        assert budget.num_bytes == 0
        with pytest.raises(RequestError, match="max_unread_bytes") as caught:
            await running.outbox.read()
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (ledger.totals["failed"], ledger.totals["finished"]) == (1, 0)
    assert len(budget) == 0


async def test_an_ended_outbox_can_still_be_emptied() -> None:
    """Only the largest goes; what fits beside it stays as it is."""
    budget = UnreadBudget(1500)
    large, small = (Outbox(budget, Pacer(1000, 0), None) for _ in range(2))
    for box, count in ((large, 20), (small, 1)):
        budget.join(box, partial(box.end, RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow")))
        box.put(PromptScores([TokenScore(-1.0, 1, array("I"), array("f"))] * count))
        box.end()
    budget.enforce()
    assert budget.num_bytes == small.num_bytes > 0
    with pytest.raises(RequestError, match="slow"):
        await large.read()
    assert isinstance(await small.read(), PromptScores)


async def test_what_frees_nothing_is_not_tried_for_ever() -> None:
    budget = UnreadBudget(10)
    box = Outbox(budget, Pacer(1000, 0), None)
    tried: list[int] = []
    budget.join(box, lambda: tried.append(1))
    box.put_tokens(0, "x", [1], [])
    budget.enforce()
    assert tried == [1]
