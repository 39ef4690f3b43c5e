"""The loop that turns the core: results in, plans out, replicas told. Sleeps until something happens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hundredfold.internal.v1 import worker_pb2
from hundredfold.rpc import Heartbeat
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.codec import plan_message, result_of
from hundredfold_scheduler.core.failures import WorkerProtocolError
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.request import Attachment, Request, Submission
from hundredfold_scheduler.core.scheduler import Scheduler

log = get_logger(__name__)

IDLE_CHECK_S = 1.0
"""Idle for so long, the engine counts all blocks and slots anew."""


class WorkerStream(Protocol):
    """The stream to the connected worker."""

    def send(self, message: worker_pb2.ExecuteRequest) -> None:
        """Send a plan soon; a stream that is broken says so through ``Engine.worker_lost``."""

    def abandon(self, reason: str) -> None:
        """Give the stream up: the worker behind it cannot be used any more."""


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
        self.limits: WorkerLimits | None = None
        """Of the worker that was seen last; ``None`` before the first."""
        self.on_worker_change: Callable[[], None] = lambda: None
        """Called when a worker came or went."""
        self._step_timeout_s = step_timeout_s
        self._heartbeat = heartbeat
        self._clock = clock
        self._stream: WorkerStream | None = None
        self._results: deque[worker_pb2.StepResult] = deque()
        self._woken = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._last_result_at = 0.0
        self._idle_since: float | None = None
        self._checked = True
        """Nothing has happened since accounts were last checked."""

    @property
    def worker_ready(self) -> bool:
        """Whether a worker is connected."""
        return self._stream is not None

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

    def worker_connected(self, stream: WorkerStream, limits: WorkerLimits) -> None:
        """A worker with an empty cache takes plans."""
        self._results.clear()
        self._stream = stream
        self.limits = limits
        self.core.connect(limits, self._clock())
        self.on_worker_change()
        self._woken.set()

    def worker_answered(self, stream: WorkerStream, result: worker_pb2.StepResult) -> None:
        """A step's result came in."""
        if stream is self._stream:
            self._results.append(result)
            self._woken.set()

    def worker_lost(self, stream: WorkerStream) -> None:
        """The stream has ended, whoever ended it."""
        if stream is self._stream:
            self._stream = None
            self._results.clear()
            self.core.lose_worker(self._clock())
            self.on_worker_change()
            self._woken.set()

    async def run(self) -> None:
        """Turn for ever. Raises ``IntegrityError`` when the accounts disagree."""
        while True:
            self._woken.clear()
            self._heartbeat.beat()
            self._turn()
            self._heartbeat.rest()
            self._set_timer()
            await self._woken.wait()

    def _turn(self) -> None:
        """Take in what came, plan as far ahead as allowed, tell the replicas."""
        now = self._clock()
        while self._results:
            self._last_result_at = now
            self._take(self._results.popleft(), now)
        self.core.expire(now)
        while self._stream is not None and (plan := self.core.plan(self._clock())) is not None:
            self._checked = False
            self._stream.send(plan_message(plan))
        for attachment in list(self.core.state.attachments.values()):
            if attachment.outbox:
                attachment.notify()
        self._check_worker(now)
        self._check_when_idle(now)

    def _take(self, message: worker_pb2.StepResult, now: float) -> None:
        try:
            self.core.apply(result_of(message), now)
        except WorkerProtocolError as error:
            log.error("the worker's result cannot be true", error=str(error))
            self._abandon(str(error))

    def _abandon(self, reason: str) -> None:
        stream = self._stream
        if stream is not None:
            self.worker_lost(stream)
            stream.abandon(reason)

    def _check_worker(self, now: float) -> None:
        """A worker that does not answer is as dead as one that is gone."""
        due = self._result_due()
        if due is not None and now >= due:
            log.error("the worker answers no step", step_timeout_s=self._step_timeout_s)
            self._abandon(f"no result within step_timeout_s = {self._step_timeout_s:g}")

    def _result_due(self) -> float | None:
        """When the worker is late; a step begins when it was sent or the one before it was done."""
        sent_at = self.core.oldest_plan_sent_at()
        return None if sent_at is None else max(sent_at, self._last_result_at) + self._step_timeout_s

    def _check_when_idle(self, now: float) -> None:
        if not self.core.idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif not self._checked and now - self._idle_since >= IDLE_CHECK_S:
            self.core.check_integrity()
            self._checked = True

    def _set_timer(self) -> None:
        """Wake up when a deadline passes, a result is overdue or an idle engine can be checked."""
        times = [self.core.next_deadline(), self._result_due()]
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
