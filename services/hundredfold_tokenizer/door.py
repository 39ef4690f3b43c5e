"""Admits requests: checks, encodes, names and submits them, and lets go of everything when they are over."""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc

from hundredfold.rpc import RequestError
from hundredfold.telemetry import inject
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.defaults import CheckpointDefaults
from hundredfold_tokenizer.ledger import Ledger
from hundredfold_tokenizer.output.choice import TextRules
from hundredfold_tokenizer.output.outbox import Outbox
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.prompts import Prompts, packed
from hundredfold_tokenizer.requests.attachment import Attachment
from hundredfold_tokenizer.requests.registry import Registry
from hundredfold_tokenizer.requests.running import RunningRequest
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.validation.fields import Envelope, check_envelope, check_model
from hundredfold_tokenizer.validation.request import (
    GenerationRequest,
    ModelLimits,
    check_prompt_ids,
    check_resume,
    sequence_params,
)
from hundredfold_tokenizer.validation.sampling import Sampling, check_sampling
from hundredfold_tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Caller:
    """What a call says of its client.

    Attributes:
        peer: Its address, as gRPC writes it.
        time_left_s: Seconds until its deadline; None without one.
    """

    peer: str
    time_left_s: float | None


class Door:
    """All requests in progress. Belongs to the event loop.

    Args:
        model: The name that clients call the model by.
        vocabulary: The model's vocabulary.
        defaults: What the checkpoint says about sampling.
        prompts: Encodes prompts.
        attachment: Carries requests to the scheduler.
        registry: Their names.
        budget: Bound on the output that clients have not read.
        ledger: Where requests are counted.
    """

    def __init__(
        self,
        *,
        model: str,
        vocabulary: Vocabulary,
        defaults: CheckpointDefaults,
        prompts: Prompts,
        attachment: Attachment,
        registry: Registry,
        budget: UnreadBudget,
        ledger: Ledger,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.registry = registry
        self._defaults = defaults
        self._prompts = prompts
        self._attachment = attachment
        self.budget = budget
        self._ledger = ledger

    @asynccontextmanager
    async def open(
        self, message: pb.GenerateRequest, caller: Caller, pacer: Pacer | None
    ) -> AsyncIterator[RunningRequest]:
        """A request from here to the end of the block: checked, submitted, and gone afterwards in every case.

        Args:
            message: As the client sent it.
            caller: Who sent it.
            pacer: When its reader is woken; None for a reader that takes all at the end.

        Raises:
            RequestError: The request is refused.
        """
        arrived = time.monotonic()
        with ExitStack() as held:
            try:
                check_model(message.model if message.HasField("model") else None, self.model)
                envelope = check_envelope(message, caller.peer)
                ticket = held.enter_context(self.registry.enter(envelope.request_id))
                request = await self._prepare(message, envelope, await self._attachment.model_limits())
                ticket.check()
                outbox = Outbox(self.budget, pacer, request.sampling.logprobs, request.sampling.n)
                held.callback(outbox.leave)
                running = RunningRequest(
                    self._attachment.draw_id(),
                    request,
                    self._text_rules(request.prompt, request.sampling),
                    outbox,
                    arrived=arrived,
                    deadline=None if caller.time_left_s is None else arrived + caller.time_left_s,
                    span=self._ledger.open_span(request, inject()),
                )
            except RequestError as error:
                self._ledger.rejected(error)
                raise
            ticket.running = running
            held.callback(self._ledger.closed, running)
            held.callback(self._attachment.release, running)
            self.budget.join(outbox, partial(self._overflow, running))
            if not running.settle():
                self._attachment.submit(running)
            yield running

    def abort(self, request_id: str) -> None:
        """End a request of any client: its stream gets CANCELLED, and the work stops even if nobody reads.

        Raises:
            RequestError: NOT_FOUND.
        """
        running = self.registry.abort(request_id)
        if running is not None:
            self._attachment.release(running)

    def started(self, running: RunningRequest) -> pb.Started:
        """The terms under which a request runs."""
        request = running.request
        return pb.Started(
            request_id=request.envelope.request_id,
            model=self.model,
            prompt_tokens=len(request.prompt),
            sampling=request.sampling.echo(request.max_tokens),
            from_generation_config=request.sampling.from_checkpoint,
        )

    def _overflow(self, running: RunningRequest) -> None:
        """A client reads too slowly for too long: its request ends, so that the others' output has room."""
        unread, limit = running.outbox.num_bytes, self.budget.limit
        message = f"{unread} bytes of this answer are unread; all together may have {limit}, max_unread_bytes"
        running.cut_off(RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, message))
        self._attachment.release(running)

    async def _prepare(
        self, message: pb.GenerateRequest, envelope: Envelope, limits: ModelLimits
    ) -> GenerationRequest:
        sampling = check_sampling(message.sampling, self._defaults.sampling, limits.vocab_size)
        kind = message.WhichOneof("input")
        if kind is None:
            raise invalid("input", "unset", "needs one of text, chat and token_ids")
        prompt = await self._encode(kind, message, sampling, limits)
        limits.check_prompt(kind, len(prompt))
        beams = sampling.beam_group
        room = limits.room(len(prompt), 1 if beams is None else beams.width)
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        known = self.vocabulary.size
        params = sequence_params(
            sampling,
            max_tokens=max_tokens,
            eos_ids=frozenset(i for i in self._defaults.eos_ids if i < limits.vocab_size),
            bad_words=await self._prompts.bad_words(sampling.bad_words),
            vocab_limit=known if known < limits.vocab_size else 0,
        )
        received = check_resume(message, sampling, max_tokens, limits)
        operation = "chat" if kind == "chat" else "text_completion"
        return GenerationRequest(envelope, operation, prompt, sampling, max_tokens, params, received)

    async def _encode(
        self, kind: str, message: pb.GenerateRequest, sampling: Sampling, limits: ModelLimits
    ) -> array[int]:
        if kind == "token_ids":
            return check_prompt_ids(message.token_ids, limits)
        if kind == "text":
            add = sampling.add_special_tokens
            ids = await self._prompts.text(message.text, add_special=add, max_model_len=limits.max_model_len)
        else:
            ids = (await self._prompts.chat(message.chat, max_model_len=limits.max_model_len)).token_ids
        if max(ids, default=0) >= limits.vocab_size:
            found = f"token {max(ids)}"
            raise invalid(kind, found, f"is none of the model's, whose vocabulary has {limits.vocab_size}")
        return packed(ids)

    def _text_rules(self, prompt: array[int], sampling: Sampling) -> TextRules:
        special = self.vocabulary.table.special
        written = self.vocabulary.encoder.written()
        return TextRules(
            table=self.vocabulary.table,
            stop=sampling.stop,
            include_stop=sampling.include_stop,
            min_tokens=sampling.min_tokens,
            skip_special=sampling.skip_special_tokens,
            at_start=all(token_id in special for token_id in prompt),
            watch_special=any(written.search(stop) for stop in sampling.stop),
        )
