"""Keeps a house of services running: starts them together, restarts what crashes, ends them in order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hundredfold.supervisor.child import Child, Sink
from hundredfold.supervisor.readiness import wait_ready
from hundredfold.supervisor.restarts import RestartBook, RestartPolicy
from hundredfold.supervisor.spec import ChildSpec

EXIT_BAD_CONFIG = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILL_S = 5.0
"""How long killed processes are waited for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why the house ended.

    Attributes:
        exit_code: For the supervisor's own process.
        message: One line for people.
        last_lines: The end of the log of the child that caused it; empty when none did.
    """

    exit_code: int
    message: str
    last_lines: tuple[str, ...] = ()


class Supervisor:
    """Runs children until a signal, the end of one that was asked to stop, or a failure that stays."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        sink: Sink,
        note: Callable[[str], None],
        policy: RestartPolicy = RestartPolicy(),  # noqa: B008  # frozen
    ) -> None:
        """Nothing is started yet.

        Args:
            specs: The children, in the order in which they are stopped.
            sink: Takes their output.
            note: Takes what the supervisor itself has to say, a line at a time.
            policy: When to restart.
        """
        self._children = [Child(spec, sink) for spec in specs]
        self._note = note
        self._policy = policy
        self._outcome: asyncio.Future[Outcome] | None = None
        self._impatient = asyncio.Event()

    async def run(self, on_ready: Callable[[], Awaitable[None]]) -> Outcome:
        """Start all children at once; ``on_ready`` runs once, when every one of them is ready.

        Signals: the first ends the children in order, each within its time; the second kills them.
        """
        loop = asyncio.get_running_loop()
        self._outcome = loop.create_future()
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)
        keepers = [asyncio.create_task(self._keep(child)) for child in self._children]
        greeting = asyncio.create_task(self._greet(on_ready))
        try:
            outcome = await self._outcome
            greeting.cancel()
            await self._stop_in_order(keepers)
            return outcome
        finally:
            # Also the way out when this task is cancelled or fails: nothing is left behind.
            self._outcome.cancel()  # where it is none yet: nobody is started again
            for child, keeper in zip(self._children, keepers, strict=True):
                child.send(signal.SIGKILL)
                if not child.running:
                    keeper.cancel()
            await asyncio.wait(keepers, timeout=_KILL_S)
            for task in (*keepers, greeting):
                task.cancel()
            await asyncio.gather(*keepers, greeting, return_exceptions=True)
            for number in handled:
                loop.remove_signal_handler(number)

    async def _keep(self, child: Child) -> None:
        """Run one child, again and again, until the house ends."""
        book = RestartBook(self._policy)
        while not self._ending:
            watching = asyncio.create_task(self._watch_readiness(child))
            try:
                code = await child.run()
            finally:
                watching.cancel()
            if self._ending:
                return
            delay = self._judge(child, code, book)
            if delay is None:
                return
            self._note(f"{child.spec.name} {_ended(code)}; restarting in {delay:.1f} s")
            await asyncio.sleep(delay)

    def _judge(self, child: Child, code: int, book: RestartBook) -> float | None:
        """Seconds until the restart of a child that ended by itself, None when the house ends with it."""
        name = child.spec.name
        if code == 0 and not child.spec.replicated:
            self._finish(Outcome(0, f"{name} was asked to stop"))
        elif code == EXIT_BAD_CONFIG:
            self._finish(_failure(EXIT_BAD_CONFIG, f"{name} cannot use its configuration", child))
        elif not child.ready_once.is_set():
            self._finish(_failure(1, f"{name} {_ended(code)} before it was ready", child))
        else:
            delay = book.delay_after_crash(time.monotonic())
            if delay is not None:
                return delay
            often = f"{self._policy.limit + 1} times within {self._policy.window_s:g} s"
            self._finish(_failure(1, f"{name} {_ended(code)}, {often}; giving up", child))
        return None

    async def _watch_readiness(self, child: Child) -> None:
        await wait_ready(child.spec.address)
        if child.ready_once.is_set():
            self._note(f"{child.spec.name} is ready again")
        child.ready_once.set()

    async def _greet(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        await asyncio.gather(*(child.ready_once.wait() for child in self._children))
        await on_ready()

    async def _stop_in_order(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        impatient = asyncio.create_task(self._impatient.wait())
        for child, keeper in zip(self._children, keepers, strict=True):
            child.send(signal.SIGTERM)
            if not child.running:
                keeper.cancel()
            await asyncio.wait(
                {keeper, impatient}, timeout=child.spec.stop_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._impatient.is_set():
                break
            if not keeper.done():
                self._note(f"{child.spec.name} did not end within {child.spec.stop_s:g} s; killing it")
                child.send(signal.SIGKILL)
                await asyncio.wait({keeper})
        impatient.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._ending:
            self._note("killing what still runs")
            self._impatient.set()
            return
        self._note("finishing what runs, then stopping; once more kills at once")
        self._finish(Outcome(0, f"stopped by {signal.Signals(number).name}"))

    @property
    def _ending(self) -> bool:
        return self._outcome is not None and self._outcome.done()

    def _finish(self, outcome: Outcome) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _failure(exit_code: int, message: str, child: Child) -> Outcome:
    return Outcome(exit_code, message, tuple(child.last_lines))
