"""All workers: addresses are looked up now and then, and each has a link for as long as it is listed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hundredfold.internal.v1 import worker_pb2
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.addresses import is_name, look_up
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.engine import Engine
from hundredfold_scheduler.model_agreement import ModelAgreement
from hundredfold_scheduler.readiness import Readiness
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_scheduler.worker_limits import WorkerRefused, limits_in_force
from hundredfold_scheduler.worker_link import WorkerLink

log = get_logger(__name__)


@dataclass(slots=True)
class Post:
    """An address, and how the worker there stands."""

    link: WorkerLink
    task: asyncio.Task[None]
    incarnation: str = ""
    """Of the worker that is connected; empty for none."""
    reason: str = "not reached yet"
    """Why none is."""


class WorkerPool:
    """Is each link's ``WorkerHall``."""

    def __init__(
        self,
        settings: SchedulerSettings,
        engine: Engine,
        readiness: Readiness,
        model: ModelAgreement,
        incarnation: str,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._readiness = readiness
        self._model = model
        self._incarnation = incarnation
        self.posts: dict[str, Post] = {}
        """By address, those not listed any more but still connected included."""
        self._found: dict[str, tuple[str, ...]] = {}
        """What each listed name stood for at the last look-up that was answered."""
        self._stopping = False
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Keep every listed worker connected. Ends only by cancellation or by a fault of ours."""
        try:
            while True:
                await self._look_up()
                self._follow()
                changes = any(is_name(address) for address in self._settings.worker)
                await self._wait(self._settings.worker_lookup_s if changes else None)
        finally:
            self._stopping = True
            tasks = [post.task for post in self.posts.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def check(self, address: str, info: worker_pb2.GetWorkerInfoResponse) -> WorkerLimits:
        """See ``WorkerHall``."""
        for other, post in self.posts.items():
            if other != address and post.incarnation == info.incarnation:
                raise WorkerRefused(f"it is connected already, as {other}")
        return limits_in_force(info, self._settings, self._model.expected())

    def connected(self, address: str, incarnation: str) -> None:
        """See ``WorkerHall``."""
        post = self.posts[address]
        post.incarnation, post.reason = incarnation, ""
        self._readiness.connected()

    def away(self, address: str, reason: str) -> None:
        """See ``WorkerHall``."""
        post = self.posts[address]
        post.incarnation, post.reason = "", reason
        self._tell_absence()

    def _tell_absence(self) -> None:
        if any(post.incarnation for post in self.posts.values()):
            return
        self._readiness.lost()
        reasons = (f"worker {address}: {post.reason}" for address, post in self.posts.items())
        self._readiness.explain("; ".join(reasons) or f"{', '.join(self._settings.worker)} names no worker")

    async def _look_up(self) -> None:
        for address in self._settings.worker:
            found = await look_up(address)
            if found is not None:
                self._found[address] = found

    def _follow(self) -> None:
        """Open links to new addresses, and let those that are not listed any more end with their session."""
        listed = dict.fromkeys(address for found in self._found.values() for address in found)
        for address in listed:
            if address in self.posts:
                self.posts[address].link.stay()
            else:
                self._open(address)
        for address, post in list(self.posts.items()):
            if address in listed:
                continue
            post.link.leave()
            if not post.incarnation:
                post.task.cancel()
        self._tell_absence()

    def _open(self, address: str) -> None:
        link = WorkerLink(address, self._settings, self._engine, self, self._incarnation)
        task = asyncio.create_task(link.run())
        self.posts[address] = Post(link, task)
        task.add_done_callback(lambda done: self._closed(address, done))

    def _closed(self, address: str, task: asyncio.Task[None]) -> None:
        """A link has ended: its worker is not waited for any more, or the link is at fault."""
        del self.posts[address]
        if self._stopping:
            return
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._failed.set()
            return
        log.info("worker not listed any more", worker=address)
        self._engine.worker_forgotten(address)

    async def _wait(self, seconds: float | None) -> None:
        """Until the next look-up. Raises what a link failed with."""
        try:
            async with asyncio.timeout(seconds):
                await self._failed.wait()
        except TimeoutError:
            return
        if self._failure is not None:
            raise self._failure
