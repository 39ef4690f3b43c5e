"""The service as a whole: puts core, engine, streams and host together, and answers for them all."""

from __future__ import annotations

import asyncio
from typing import Any

from hundredfold.internal.v1 import scheduler_pb2_grpc
from hundredfold.rpc import ServiceHost
from hundredfold.telemetry import LoadSample, get_logger
from hundredfold.v1 import control_pb2
from hundredfold_scheduler.accounts import load_message, worker_infos
from hundredfold_scheduler.attach_service import AttachService
from hundredfold_scheduler.core.scheduler import Scheduler
from hundredfold_scheduler.engine import Engine
from hundredfold_scheduler.model_agreement import ModelAgreement
from hundredfold_scheduler.policies import core_config, policies_in_force
from hundredfold_scheduler.readiness import Readiness
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_scheduler.watcher import Watcher
from hundredfold_scheduler.worker_pool import WorkerPool

log = get_logger(__name__)

_TURN_LIMIT_S = 30.0
"""Longest that a turn of the engine may take before the service counts as hung."""


class SchedulerService:
    """One scheduler. Is the host's ``ControlSource``."""

    def __init__(self, settings: SchedulerSettings, model_fingerprint: str | None = None) -> None:
        self.settings = settings
        self.host = ServiceHost("scheduler", settings, self)
        self.core = Scheduler(core_config(settings), Watcher(self.host.metrics))
        self.engine = Engine(self.core, settings.step_timeout_s, self.host.heartbeat("engine", _TURN_LIMIT_S))
        incarnation = self.host.facts.incarnation
        model = ModelAgreement(model_fingerprint, self.core.state)
        self.attach = AttachService(
            self.engine, incarnation, model, settings.unread_limit, lambda: self.host.draining
        )
        self.engine.on_worker_change = self.attach.worker_changed
        readiness = Readiness(self.host.set_ready, settings.recovery_grace_s)
        self.workers = WorkerPool(settings, self.engine, readiness, model, incarnation)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.attach, self.host.server)
        self.host.metrics.watch_load(self._sample)

    async def run(self) -> int:
        """Serve until asked to stop; returns the process's exit code."""
        tasks = [
            asyncio.create_task(self._guard("engine", self.engine.run())),
            asyncio.create_task(self._guard("workers", self.workers.run())),
        ]
        try:
            return await self.host.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def info(self) -> list[control_pb2.ServiceInfo]:
        """This service, then every worker that it knows of."""
        own = self.host.service_info()
        own.settings.update(policies_in_force(self.settings))
        limits = self.engine.limits
        if limits is not None:
            own.model.fingerprint = limits.model_fingerprint
            own.model.max_model_len = limits.max_model_len
            own.model.vocab_size = limits.vocab_size
            for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
                own.settings[name] = str(getattr(limits, name))
        return [own, *await worker_infos(self.workers.posts, self.settings.max_message_bytes)]

    async def load(self) -> control_pb2.GetLoadResponse:
        """How busy it is, and each worker."""
        return load_message(self.core)

    def running(self) -> int:
        """Requests that a drain waits for."""
        return len(self.core.state.requests)

    def _sample(self) -> LoadSample:
        load = self.core.load()
        return LoadSample(
            running=load.running,
            waiting=load.waiting,
            waiting_tokens=load.waiting_tokens,
            cache_usage=load.used_blocks / load.total_blocks if load.total_blocks else None,
            free_blocks=load.free_blocks,
            cached_blocks=load.cached_blocks,
            used_blocks=load.used_blocks,
        )

    async def _guard(self, name: str, work: Any) -> None:
        """A loop that ends is a fault of ours; the process goes with it and its replicas submit anew."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("a loop has failed", loop=name)
            self.host.fail(f"{name}: {error}")
