"""A request and its sequence: all per-request state of this service, in one place."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hundredfold_scheduler.core.beam_group import BeamGroup
from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.lazy_heap import Entry
from hundredfold_scheduler.core.outbox import Account, Outbox
from hundredfold_scheduler.core.step import EndReason, NewSequence

if TYPE_CHECKING:
    from hundredfold_scheduler.core.block_hash import BlockHasher
    from hundredfold_scheduler.core.ledger import Account as Served
    from hundredfold_scheduler.core.worker import Worker

SOLO_DEATHS = 2
"""Worker deaths after which a sequence is replayed alone."""
MAX_DEATHS = 3
"""Worker deaths that end a request."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as a tokenizer replica brings it. The door resolved every default."""

    stream_id: int
    """The replica's number for it."""
    request_id: str
    """The public id."""
    prompt: array[int]
    max_tokens: int
    params: object
    """How to sample; handed to the worker as it is."""
    stop_token_ids: frozenset[int] = frozenset()
    n: int = 1
    """Choices."""
    priors: Mapping[int, array[int]] = field(default_factory=dict)
    """Output ids that were delivered already, by choice."""
    finished: frozenset[int] = frozenset()
    """Choices that have ended already."""
    beams: BeamTerms | None = None
    """The search whose ``n`` best beams are the choices; ``None`` samples."""
    priority: int = 0
    """Higher runs first."""
    tenant: str = ""
    adapter: str = ""
    cache_salt: bytes = b""
    skip_prefix_cache: bool = False
    deadline_s: float | None = None
    """Seconds from now until the request's time is up."""
    age_s: float = 0.0
    """Seconds since the request arrived at the door."""
    traceparent: str = ""
    accepted: bool = False
    """A scheduler before this one had it already."""
    unsupported: str = ""
    """Name of a field whose feature is not there yet; empty for none."""

    @property
    def num_seats(self) -> int:
        """Sequences that it makes."""
        return self.n - len(self.finished) if self.beams is None else self.beams.width


@enum.unique
class Status(enum.IntEnum):
    """Where a sequence is. One place removes it from each (``ending``)."""

    WAITING = 0
    """In the waiting queue."""
    RUNNING = 1
    """Holds a slot and blocks."""
    PARKED = 2
    """Preempted while a step that names it is in flight; queued again when that result is in."""
    DONE = 3
    """Ended, failed or cancelled. Results that still name it are ignored."""
    HELD = 4
    """Waits for another sequence of its request: to share its prompt or, a beam, to be seated with it."""


class Attachment:
    """One tokenizer replica's stream: its live requests, and what it has yet to be told."""

    __slots__ = ("notify", "outbox", "replica", "requests")

    def __init__(self, replica: str, notify: Callable[[], None]) -> None:
        self.replica = replica
        self.notify = notify
        """Called by the owner of the core when there is something to read."""
        self.requests: dict[int, Request] = {}
        self.outbox = Outbox()


class Request:
    """What was asked, by whom, and until when."""

    __slots__ = (
        "answered",
        "arrival",
        "attachment",
        "beams",
        "deadline",
        "followers",
        "lead",
        "num_output",
        "sequences",
        "submission",
        "traceparent",
    )

    def __init__(self, submission: Submission, attachment: Attachment, number: int, now: float) -> None:
        self.submission = submission
        self.attachment = attachment
        self.arrival = now - submission.age_s
        self.traceparent = submission.traceparent
        """What the worker's spans belong to; an observer may put a span of this service between."""
        self.deadline: Entry[Request] | None = None
        self.answered = False
        """Whether its first token was told of."""
        self.num_output = 0
        """Output tokens of its choices that have ended."""
        beams = submission.beams
        indexes = range(submission.n) if beams is None else range(beams.width)
        live = [index for index in indexes if beams is not None or index not in submission.finished]
        self.sequences = {index: Sequence(self, number + place, index) for place, index in enumerate(live)}
        """Those that have not ended, by choice; of a beam search the beams."""
        self.lead = self.sequences[live[0]]
        """The one that computes the prompt, and tells its scores."""
        for sequence in list(self.sequences.values())[1:]:
            sequence.scored_to = sequence.prompt_len
        self.followers: list[Sequence] = []
        """Those that are held until it has."""
        self.beams: BeamGroup | None = None
        if beams is not None:
            self.beams = BeamGroup(beams, submission.stop_token_ids, list(self.sequences.values()))

    @property
    def request_id(self) -> str:
        """The public id."""
        return self.submission.request_id


class Sequence:
    """One run of tokens on its way through the worker: *computed* tokens chase *total* tokens.

    What results have confirmed is ``computed`` and ``total``; what it may become by the steps in flight is
    ``reserved`` and ``known``. ``computed <= reserved``, ``total <= known``, and the difference of the two is
    what the next plan can compute. Blocks hold ``reserved`` tokens.
    """

    __slots__ = (
        "account",
        "beams",
        "blocks",
        "bypassed",
        "cached_tokens",
        "capacity",
        "choice_index",
        "computed",
        "deaths",
        "end_total",
        "first_step_at",
        "first_token_at",
        "hashes",
        "high_water",
        "introduced",
        "known",
        "last_needed",
        "last_step",
        "last_token_at",
        "leads",
        "left_to",
        "level",
        "max_tokens",
        "next_full",
        "number",
        "outbox",
        "preemptions",
        "promised",
        "prompt_len",
        "queue_entry",
        "request",
        "reserved",
        "scored_to",
        "slot",
        "started",
        "status",
        "stream_id",
        "tokens",
        "told_blocks",
        "total",
        "unseen",
        "worker",
    )

    def __init__(self, request: Request, number: int, choice_index: int) -> None:
        submission = request.submission
        self.request = request
        self.number = number
        """Unique in this process; order of submission."""
        self.choice_index = choice_index
        self.beams: BeamGroup | None = None
        """The group that it is a beam of."""
        self.leads = False
        """Whether others of its request wait for its first token."""
        self.stream_id = submission.stream_id
        self.outbox = request.attachment.outbox
        prior = array("I") if submission.beams is not None else submission.priors.get(choice_index)
        self.tokens = submission.prompt + (prior or array("I"))
        """Prompt and output ids."""
        self.prompt_len = len(submission.prompt)
        self.total = len(self.tokens)
        self.max_tokens = 0
        self.end_total = 0
        """``total`` at which it ends by length."""
        self.last_needed = 0
        """Tokens that ever need to be computed: an answer's last one does not."""
        self.set_max_tokens(submission.max_tokens)

        self.status = Status.WAITING
        self.queue_entry: Entry[Sequence] | None = None
        self.started = bool(prior)
        """Has been worked on before; such sequences are admitted first."""
        self.account: Served | None = None
        """Where its tokens are counted, from its first seat on."""
        self.level = 0
        """The class in which it got its first seat."""
        self.bypassed = 0
        """Admissions that overtook it while it was first in line and did not fit."""
        self.left_to: tuple[str, int] | None = None
        """The worker that it was left to by another while it waited, and the last plan made there then."""
        self.deaths = 0
        """Worker deaths at which it was running."""
        self.high_water = 0
        """Most tokens ever computed; below it, computing again is waste."""
        self.scored_to = 0
        """Position up to which scores were delivered."""
        self.cached_tokens = 0
        self.preemptions = 0
        self.first_step_at = 0.0
        """0 until a step worked on it."""
        self.first_token_at = 0.0
        """0 until there is one."""
        self.last_token_at = 0.0

        self.hashes: dict[BlockHasher, list[bytes]] = {}
        """Its root's hash and those of its full blocks, as far as they were needed."""
        self.worker: Worker | None = None
        """Which worker it is running or parked on."""
        self.slot = -1
        self.introduced = False
        """Whether its worker knows of it, as of the last plan."""
        self.reset()

    def reset(self) -> None:
        """Forget what a worker holds of it."""
        self.blocks: list[int] = []
        self.capacity = 0
        """Tokens that its blocks can hold."""
        self.told_blocks = 0
        """Leading blocks that the worker knows of."""
        self.unseen = 0
        """Leading blocks that it has given back, because windows have moved on: their numbers only fill the
        table.
        """
        self.promised = 0
        """Blocks set aside for the rest of its prompt."""
        self.next_full = 0
        """Computed tokens at which its next block is complete; set with the blocks."""
        self.computed = 0
        self.reserved = 0
        """Tokens that may be computed once the steps in flight are done."""
        self.known = self.total
        """Tokens that there may be then; the worker knows their ids."""
        self.last_step = 0
        """The last plan that names it. Its blocks and slot are free for every later one."""

    def set_max_tokens(self, max_tokens: int) -> None:
        """Set the output limit and what follows from it."""
        self.max_tokens = max_tokens
        self.end_total = self.prompt_len + max_tokens
        self.last_needed = max(self.prompt_len, self.end_total - 1)

    def become(self, tokens: array[int]) -> None:
        """Go on as a beam with these ids, of which nothing is computed; with none, rest."""
        self.tokens = tokens[:]
        self.total = self.last_needed = len(tokens)
        self.hashes = {}
        last_step = self.last_step
        self.reset()
        self.last_step = last_step

    def extend(self, token_id: int) -> None:
        """Go on as a beam with one more id."""
        self.tokens.append(token_id)
        self.total += 1
        self.known = self.last_needed = self.total

    def introduce(self) -> NewSequence:
        """As the worker meets it in the plan that seats it; from here on its blocks are told."""
        self.told_blocks = len(self.blocks)
        self.introduced = True
        return NewSequence(
            slot=self.slot,
            sequence_id=self.number,
            prompt=self.tokens[: self.prompt_len],
            output=self.tokens[self.prompt_len :],
            block_ids=list(self.blocks),
            num_computed_tokens=self.computed,
            max_tokens=self.max_tokens,
            params=self.request.submission.params,
            prompt_is_scored=self.scored_to >= self.prompt_len,
            choice_index=self.choice_index,
            traceparent=self.request.traceparent,
            num_candidates=0 if self.beams is None else self.beams.search.num_candidates,
        )

    def taken(self, now: float) -> Account:
        """What it took until now."""
        first_step = self.first_step_at or now
        first_token = self.first_token_at or now
        last_token = self.last_token_at or first_token
        return Account(
            cached_tokens=self.cached_tokens,
            queue_us=max(0, round((first_step - self.request.arrival) * 1e6)),
            prefill_us=max(0, round((first_token - first_step) * 1e6)),
            decode_us=max(0, round((last_token - first_token) * 1e6)),
            preemptions=self.preemptions,
        )

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return self.total - self.prompt_len

    @property
    def tokens_to_lose(self) -> int:
        """Computed tokens that it would have to compute again after a preemption: what others hold too stays
        in the cache. Of beams those of the whole group.
        """
        if self.worker is None:
            return self.computed
        cache = self.worker.cache
        return cache.num_exclusive(self) if self.beams is None else cache.num_exclusive_of(self.beams.members)

    @property
    def solo(self) -> bool:
        """Whether it has to run alone because it may be what kills workers."""
        return self.deaths >= SOLO_DEATHS

    def ended_already(self) -> tuple[EndReason, int | None] | None:
        """How a resumed sequence had ended when only the news of it was lost, else ``None``."""
        if not self.num_output:
            return None
        last = self.tokens[-1]
        if last in self.request.submission.stop_token_ids:
            return EndReason.STOP, last
        if self.num_output >= self.max_tokens:
            return EndReason.LENGTH, None
        return None
