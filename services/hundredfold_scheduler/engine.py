"""The loop that turns the core: results in, plans out, replicas told. Sleeps until something happens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hundredfold.internal.v1 import worker_pb2
from hundredfold.rpc import Heartbeat
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.codec import plan_message, result_of
from hundredfold_scheduler.core.failures import WorkerProtocolError
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.request import Attachment, Request, Submission
from hundredfold_scheduler.core.scheduler import Scheduler
from hundredfold_scheduler.core.worker import Worker

log = get_logger(__name__)

IDLE_CHECK_S = 1.0
"""Idle for so long, the engine counts all blocks and slots anew."""


class WorkerStream(Protocol):
    """The stream to a connected worker."""

    def send(self, message: worker_pb2.ExecuteRequest) -> None:
        """Send a plan soon; a stream that is broken says so through ``Engine.worker_lost``."""

    def abandon(self, reason: str) -> None:
        """Give the stream up: the worker behind it cannot be used any more."""


@dataclass(slots=True, eq=False)
class _Connected:
    """A worker and the way to it."""

    stream: WorkerStream
    worker: Worker
    last_result_at: float = 0.0


class Engine:
    """Owns the core. Every method belongs to the event loop."""

    def __init__(
        self,
        core: Scheduler,
        step_timeout_s: float,
        heartbeat: Heartbeat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.on_worker_change: Callable[[], None] = lambda: None
        """Called when a worker came or went."""
        self._step_timeout_s = step_timeout_s
        self._heartbeat = heartbeat
        self._clock = clock
        self._connected: dict[WorkerStream, _Connected] = {}
        self._results: deque[tuple[_Connected, worker_pb2.StepResult]] = deque()
        self._woken = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None
        self._checked = True
        """Nothing has happened since accounts were last checked."""

    @property
    def worker_ready(self) -> bool:
        """Whether any worker is connected."""
        return bool(self._connected)

    @property
    def limits(self) -> WorkerLimits | None:
        """The widest that a request may count on; ``None`` before the first worker."""
        return self.core.state.known.widest(1)

    def attach(self, replica: str, notify: Callable[[], None]) -> Attachment:
        """A replica's new stream; ``notify`` is called when it has something to read."""
        return self.core.attach(replica, notify, self._clock())

    def detach(self, attachment: Attachment) -> None:
        """A replica's stream has ended."""
        self.core.detach(attachment, self._clock())
        self._woken.set()

    def submit(self, attachment: Attachment, submission: Submission) -> Request | None:
        """Queue a request, or tell its replica why not. Raises ``ValueError`` for a stream id in use."""
        self._woken.set()
        return self.core.submit(attachment, submission, self._clock())

    def cancel(self, attachment: Attachment, stream_id: int) -> None:
        """A client went away."""
        self.core.cancel(attachment, stream_id, self._clock())
        self._woken.set()

    def finish(self, attachment: Attachment, stream_id: int, index: int, kept_tokens: int) -> None:
        """The tokenizer ended a choice."""
        self.core.finish(attachment, stream_id, index, kept_tokens, self._clock())
        self._woken.set()

    def worker_connected(self, stream: WorkerStream, name: str, limits: WorkerLimits) -> None:
        """A worker with an empty cache takes plans."""
        worker = self.core.connect(name, limits, self._clock())
        self._connected[stream] = _Connected(stream, worker)
        self.on_worker_change()
        self._woken.set()

    def worker_answered(self, stream: WorkerStream, result: worker_pb2.StepResult) -> None:
        """A step's result came in."""
        connected = self._connected.get(stream)
        if connected is not None:
            self._results.append((connected, result))
            self._woken.set()

    def worker_leaving(self, stream: WorkerStream) -> None:
        """The worker is about to stop. What runs there goes on: moved at once, all of it would be computed
        anew, while most ends within the worker's grace.
        """
        connected = self._connected.get(stream)
        if connected is not None:
            connected.worker.leaving = True
            self._woken.set()

    def worker_heard(self, stream: WorkerStream, *, answers: bool) -> None:
        """Whether the worker's process answers calls at present. One that does not may be stopped, or gone
        without a word: it gets nothing new until it is heard again.
        """
        connected = self._connected.get(stream)
        if connected is not None and connected.worker.silent is answers:
            connected.worker.silent = not answers
            self._woken.set()

    def worker_lost(self, stream: WorkerStream) -> None:
        """The stream has ended, whoever ended it."""
        connected = self._connected.pop(stream, None)
        if connected is not None:
            self.core.lose(connected.worker, self._clock())
            self.on_worker_change()
            self._woken.set()

    def worker_forgotten(self, name: str) -> None:
        """A worker that is gone is not waited for any more."""
        self.core.forget(name, self._clock())
        self.on_worker_change()
        self._woken.set()

    async def run(self) -> None:
        """Turn for ever. Raises ``IntegrityError`` when the accounts disagree."""
        while True:
            self._woken.clear()
            self._heartbeat.beat()
            now = self._clock()
            self._turn(now)
            self._heartbeat.rest()
            self._set_timer(now)
            await self._woken.wait()

    def _turn(self, now: float) -> None:
        """Take in what came, plan as far ahead as allowed, tell the replicas."""
        while self._results:
            connected, result = self._results.popleft()
            if connected.stream in self._connected:
                connected.last_result_at = now
                self._take(connected, result, now)
        self.core.expire(now)
        for connected in list(self._connected.values()):
            while (plan := self.core.plan(connected.worker, self._clock())) is not None:
                self._checked = False
                connected.stream.send(plan_message(plan))
        for attachment in list(self.core.state.attachments.values()):
            if attachment.outbox:
                attachment.notify()
        self._check_workers(now)
        self._check_when_idle(now)

    def _take(self, connected: _Connected, message: worker_pb2.StepResult, now: float) -> None:
        try:
            self.core.apply(connected.worker, result_of(message), now)
        except WorkerProtocolError as error:
            log.error("a worker's result cannot be true", worker=connected.worker.name, error=str(error))
            self._abandon(connected, str(error))

    def _abandon(self, connected: _Connected, reason: str) -> None:
        self.worker_lost(connected.stream)
        connected.stream.abandon(reason)

    def _check_workers(self, now: float) -> None:
        """A worker that does not answer is as dead as one that is gone."""
        for connected in list(self._connected.values()):
            due = self._result_due(connected)
            if due is not None and now >= due:
                timeout_s = self._step_timeout_s
                log.error("a worker answers no step", worker=connected.worker.name, step_timeout_s=timeout_s)
                self._abandon(connected, f"no result within step_timeout_s = {timeout_s:g}")

    def _result_due(self, connected: _Connected) -> float | None:
        """When the worker is late; a step begins when it was sent or the one before it was done."""
        in_flight = connected.worker.in_flight
        if not in_flight:
            return None
        return max(in_flight[0].sent_at, connected.last_result_at) + self._step_timeout_s

    def _check_when_idle(self, now: float) -> None:
        if not self.core.idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif not self._checked and now - self._idle_since >= IDLE_CHECK_S:
            self.core.check_integrity()
            self._checked = True

    def _set_timer(self, turned_at: float) -> None:
        """Wake up when a deadline passes, a plan can be made, a result is overdue or an idle engine can be
        checked; at once for what came due while the engine turned.
        """
        times = [self.core.next_due(turned_at), *map(self._result_due, self._connected.values())]
        if self._idle_since is not None and not self._checked:
            times.append(self._idle_since + IDLE_CHECK_S)
        due = min((when for when in times if when is not None), default=None)
        timer = self._timer
        if due is None:
            return
        delay = max(0.0, due - self._clock())
        loop = asyncio.get_running_loop()
        when = loop.time() + delay
        # One that fires early does no harm; a new one for each step would.
        if timer is not None and not timer.cancelled() and timer.when() <= when:
            return
        if timer is not None:
            timer.cancel()
        self._timer = loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._woken.set()
