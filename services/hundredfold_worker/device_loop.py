"""The device loop: the process's main thread computes plans one after the other, and sleeps between.

All torch work of the process happens on this one thread: a second one that ever ran a parallel region would
make every small kernel pay a wake-up.
"""

from __future__ import annotations

import time

from hundredfold.rpc import Heartbeat
from hundredfold.telemetry import ServiceMetrics, get_logger, recording, step_span
from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.plan import StepResult
from hundredfold_worker.failures import BrokenPlan
from hundredfold_worker.session import Begin, End, Finish, Inbox, Leave, Run, Session

log = get_logger(__name__)


class DeviceLoop:
    """Runs until it is told to leave. What an engine cannot survive is raised."""

    def __init__(
        self, engine: Engine, inbox: Inbox, heartbeat: Heartbeat, metrics: ServiceMetrics | None = None
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._heartbeat = heartbeat
        self._metrics = metrics
        self._session: Session | None = None
        self._traceparents: dict[int, str] = {}
        self._had_work = False
        self._untold: tuple[Session, StepResult] | None = None
        engine.before_kernels = self._tell
        engine.newcomers_wait = self._newcomers_wait

    def run(self) -> None:
        """Carry out orders."""
        while True:
            self._heartbeat.rest()
            waited_from = time.perf_counter()
            order = self._inbox.get()
            self._heartbeat.beat()
            if not isinstance(order, Run):
                self._tell()
            match order:
                case Run():
                    self._compute(order, waited_from)
                case Begin():
                    self._forget(order.session)
                case Finish():
                    order.session.answer(order.reason)
                case End() if order.session is self._session:
                    self._forget(None)
                case Leave():
                    return

    def _forget(self, successor: Session | None) -> None:
        self._session = successor
        self._had_work = False
        self._traceparents.clear()
        self._engine.reset()

    def _tell(self) -> None:
        """Hand up the last result. Sending it takes the interpreter for a millisecond: of that the next step
        feels nothing while its kernels run, so a result waits until they do.
        """
        if self._untold is not None:
            (session, result), self._untold = self._untold, None
            session.answer(result)

    def _newcomers_wait(self) -> bool:
        return self._session is not None and self._session.newcomers_wait

    def _compute(self, order: Run, waited_from: float) -> None:
        session = order.session
        session.begin(order.plan)
        if session is not self._session or not session.alive:
            self._tell()
            return
        waited = time.perf_counter() - waited_from
        if self._had_work:
            self._engine.totals.gap_s += waited
            if self._metrics is not None:
                self._metrics.gap(waited)
        try:
            result = self._step(order, round(waited * 1e6))
        except BrokenPlan as broken:
            log.error("broken plan", step=order.plan.step, reason=str(broken))
            self._tell()
            self._forget(None)
            session.answer(broken)
            return
        except Exception as error:
            self._tell()
            session.answer(error)
            raise
        self._tell()  # where no kernel ran
        self._untold = session, result
        if self._inbox.empty():
            self._tell()
        self._had_work = self._engine.num_live > 0

    def _step(self, order: Run, idle_us: int) -> StepResult:
        before = self._engine.totals.computed_tokens
        if recording():
            with step_span("worker.step", self._traced(order), {"hundredfold.rows": len(order.plan.slots)}):
                result = self._engine.step(order.plan, idle_us)
        else:
            result = self._engine.step(order.plan, idle_us)
        if self._metrics is not None:
            self._metrics.step(result.step_us / 1e6, self._engine.totals.computed_tokens - before)
        return result

    def _traced(self, order: Run) -> list[str]:
        """Trace contexts of the requests that a plan works on."""
        known = self._traceparents
        for slot in order.plan.released_slots.tolist():
            known.pop(slot, None)
        known.update(order.traceparents)
        return [known[slot] for slot in order.plan.slots.tolist() if slot in known]
