"""One worker incarnation as planning sees it: its cache, its seats, what runs there and what is in flight."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from hundredfold_scheduler.core.beam_group import BeamGroup
from hundredfold_scheduler.core.cache import Cache
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.request import Sequence
from hundredfold_scheduler.core.slots import Slots
from hundredfold_scheduler.core.step_cost import StepCost, Work

MAX_PLANS_IN_FLIGHT = 2
"""Plans of one worker whose results are not in: the one that runs and the next."""

LONG_STEP_S = 0.03
"""Steps from here on are not planned right after each other."""
LEAD_S, LEAD = 0.012, 0.2
"""Before a step is thought to end, the next is planned by so many seconds and such a part of it, whichever is
more.
"""
LATE, IN_TIME = 0.25, 0.01
"""A worker that had to wait for a plan loses: the part grows by so much each time, and shrinks for each plan
that came in time.
"""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose result is not in. Row ``i`` of the result belongs to ``rows[i]``."""

    step: int
    rows: list[Sequence]
    num_tokens: list[int]
    """Tokens by which each row may advance."""
    num_samples: list[int]
    """Ids that each row may bring: 1 when it reaches its last known token, else 0; and one for each draft."""
    sent_at: float
    work: Work
    """Of the first pass, without drafts. Its rows are those that advance by their next token; all others are
    tokens of prompts and of what is computed again.
    """
    num_drafts: int = 0
    """Of the tokens, those that are drafts; the worker tries as many of them as it likes."""
    num_repeats: int = 0
    """Passes that may follow the first."""
    takes_s: float = 0.0
    """What the step is thought to take; 0 where it is short, or nothing is known."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a look at the queue finds a worker with: all that may decide whether anybody fits."""

    version: int
    """Of the queue."""
    num_owners: int
    """Owners that asked lately: what is kept for those who hold little depends on them."""
    room: int
    """Blocks that newcomers could take."""
    seats: int
    longest: int
    """Longest prompt that may start, in tokens."""
    claims_only: bool
    """Whether memory was too short for anybody but owners who hold little."""
    arrived: int
    """Blocks entered into the cache so far that somebody who was passed over can share."""

    def is_no_better_than(self, other: Outlook) -> bool:
        """Whether nobody can fit now who did not fit then."""
        return (
            self.version == other.version
            and self.num_owners == other.num_owners
            and self.room <= other.room
            and self.seats <= other.seats
            and self.longest <= other.longest
            and self.claims_only >= other.claims_only
            and self.arrived == other.arrived
        )


@dataclass(slots=True, eq=False)
class Worker:
    """Dropped as a whole when the worker dies: one that comes back starts empty."""

    name: str
    """Unique among the connected ones."""
    limits: WorkerLimits
    cache: Cache
    slots: Slots
    running: dict[int, Sequence] = field(default_factory=dict)
    """Sequences seated here by number, in the order of admission."""
    beams: dict[int, BeamGroup] = field(default_factory=dict)
    """Groups seated here, by the number of their first member."""
    parked: dict[int, Sequence] = field(default_factory=dict)
    """Preempted ones whose last result is not in."""
    in_flight: deque[InFlight] = field(default_factory=deque)
    planned: int = 0
    """Number of the last plan made on this stream."""
    applied: int = 0
    """Number of the last result taken in."""
    backlog: int = 0
    """Tokens that its running sequences had yet to compute before their next ids, after the last plan."""
    leaving: bool = False
    """It has said that it stops: it gets nothing new, and its end is nobody's fault."""
    silent: bool = False
    """It does not answer at present; it gets nothing new meanwhile."""
    stuck: Outlook | None = None
    """What the last look at the queue found, when nothing fitted."""
    cost: StepCost = field(default_factory=StepCost)
    """What its steps take."""
    last_step_s: float = 0.0
    """What the last one took."""
    last_result_at: float = 0.0
    lead: float = LEAD
    """Part of a step before whose end the next is planned."""
    num_repeats: int = 0
    """Of the last plan."""
    last_start: int = 0
    """Number of the last plan with newcomers."""
    prompts_first: int = 0
    """Number of the last plan of prompts alone that left the decodes to the next one."""
    prompts_left_s: float = 0.0
    """Of what prompts may take in that one and the next one together, what they left."""
    called_at: float | None = None
    """When the first request came since the last plan was made."""
    gathers_since: float | None = None
    """Since when it is idle with requests waiting, to begin with more of them."""

    def plans_from(self) -> float:
        """When the next plan may be made. Who comes while a long step runs is to be in the next one: that is
        planned shortly before it can begin, or when the result is in, whatever comes first. A plan that goes
        on ends with the pass that runs when somebody comes.
        """
        if not self.in_flight or not self.in_flight[0].takes_s:
            return 0.0
        step = self.in_flight[0]
        begun, takes_s = max(step.sent_at, self.last_result_at), step.takes_s
        if step.num_repeats and self.called_at is not None:
            pass_s = takes_s / (1 + step.num_repeats)
            takes_s = min(takes_s, pass_s * max(1, math.ceil((self.called_at - begun) / pass_s)))
        return begun + takes_s - max(LEAD_S, self.lead * takes_s)

    def answered(self, step: InFlight, seconds: float, now: float) -> None:
        """A step's result is in, and what came of it."""
        self.last_step_s, self.last_result_at = seconds, now
        if step.takes_s and self.running:
            self.lead = max(LEAD, self.lead - IN_TIME) if self.in_flight else min(1.0, self.lead + LATE)

    def will_take(self, work: Work) -> float:
        """What a step with such work is thought to take, if that is worth to know."""
        return self.cost.seconds(work) if self.last_step_s >= LONG_STEP_S else 0.0

    def may_leave_decodes(self, num_waiting: int) -> bool:
        """Whether prompts, with so many waiting, may have the next step, and decodes the one after it: not
        twice in a row, and not where somebody waits for a seat or decodes could miss a block then.
        """
        return (
            (self.backlog > 0 or num_waiting > 0)
            and self.prompts_first < self.planned
            and not self.beams
            and num_waiting <= self.slots.num_free
            and self.cache.num_unpromised >= len(self.running)
        )

    def stands(self) -> tuple[list[Sequence], Work]:
        """Prompts under way, and what a step of all others that run would compute."""
        going = [one for one in self.running.values() if one.reserved < one.last_needed]
        prefills = [one for one in going if one.known - one.reserved != 1]
        read = [one.known for one in going if one.known - one.reserved == 1]
        if (window := self.limits.sliding_window) is not None:
            read = [min(known, window) for known in read]
        return prefills, Work(len(read), sum(read))

    @property
    def takes_new(self) -> bool:
        """Whether sequences may be seated here."""
        return not (self.leaving or self.silent)

    @property
    def runs_solo(self) -> bool:
        """Whether a sequence is here that has to be alone."""
        return bool(self.running) and next(iter(self.running.values())).solo

    def is_late(self, now: float, patience_s: float) -> bool:
        """Whether a result has been due for longer than ``patience_s``."""
        late = self.late_from(patience_s)
        return late is not None and now >= late

    def late_from(self, patience_s: float) -> float | None:
        """The first moment at which it is; ``None`` when no result is due."""
        return math.nextafter(self.in_flight[0].sent_at + patience_s, math.inf) if self.in_flight else None
