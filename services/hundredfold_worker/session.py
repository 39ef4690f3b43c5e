"""One scheduler's stream, between two threads: plans go down to the device, answers come up in order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from queue import SimpleQueue

from hundredfold_worker.engine.plan import StepPlan, StepResult

MAX_PLANS_QUEUED = 4
"""Plans taken from a stream whose results are still out; more wait in the stream, unread."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A scheduler was welcomed: its sequences start from nothing."""

    session: Session


@dataclass(frozen=True, slots=True)
class Run:
    """A plan to compute."""

    session: Session
    plan: StepPlan
    traceparents: dict[int, str]
    """Trace context of new sequences by slot; empty where nothing is traced."""
    received: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class Finish:
    """The worker stops: the scheduler is told when the results of all plans before this are handed up."""

    session: Session
    reason: Exception


@dataclass(frozen=True, slots=True)
class End:
    """The scheduler is gone: its sequences are forgotten."""

    session: Session


@dataclass(frozen=True, slots=True)
class Leave:
    """The process ends."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker is about to stop; told to the scheduler between two results."""


Order = Begin | Run | Finish | End | Leave
Inbox = SimpleQueue[Order]
"""To the device thread. Bounded by what may be in it: one session, ``MAX_PLANS_QUEUED`` plans."""


class Session:
    """Made on the gRPC thread. For the device thread are only ``begin``, ``newcomers_wait``, ``answer`` and
    ``alive``.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[StepResult | Leaving | Exception] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_PLANS_QUEUED)
        self._brought = self._begun = 0
        """Plans with new sequences, handed down and begun: each is counted by one thread alone."""
        self.alive = True
        """Whether the scheduler is still there; a plan of a dead session is not computed."""
        inbox.put(Begin(self))

    async def room(self) -> None:
        """Wait until another plan may be taken."""
        await self._room.acquire()

    def plan(self, plan: StepPlan, traceparents: dict[int, str]) -> None:
        """Hand a plan down; ``room`` was waited for."""
        self._brought += bool(plan.new_sequences)
        self._inbox.put(Run(self, plan, traceparents))

    async def next_answer(self) -> StepResult | Leaving:
        """The next result, or the news of a drain. Raises what ended the session."""
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Leaving):
            self._room.release()
        return answer

    def leave(self) -> None:
        """Tell the scheduler to bring nothing new."""
        self._answers.put_nowait(Leaving())

    def finish(self, reason: Exception) -> None:
        """End the session behind the results of all plans handed down so far; ``next_answer`` raises."""
        self._inbox.put(Finish(self, reason))

    def fail(self, error: Exception) -> None:
        """End the session at once, from the gRPC side; ``next_answer`` raises."""
        self._answers.put_nowait(error)

    def close(self) -> None:
        """The stream is over."""
        self.alive = False
        self._inbox.put(End(self))

    def begin(self, plan: StepPlan) -> None:
        """From the device thread: a plan's turn has come."""
        self._begun += bool(plan.new_sequences)

    @property
    def newcomers_wait(self) -> bool:
        """For the device thread: whether a plan that has yet to begin brings sequences."""
        return self._brought > self._begun

    def answer(self, answer: StepResult | Exception) -> None:
        """From the device thread: a result, or why there will be no more."""
        try:
            self._loop.call_soon_threadsafe(self._answers.put_nowait, answer)
        except RuntimeError:
            self.alive = False  # the gRPC thread has ended
