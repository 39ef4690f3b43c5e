"""What GetLoad and GetServerInfo tell of the scheduler's workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import grpc.aio

from hundredfold.rpc import open_channel
from hundredfold.v1 import control_pb2, control_pb2_grpc
from hundredfold_scheduler.core.scheduler import Scheduler
from hundredfold_scheduler.core.worker import Worker
from hundredfold_scheduler.worker_pool import Post

_WORKER_ANSWER_S = 2.0
UNREACHABLE = "unreachable"
"""State of a worker that does not answer."""


def load_message(core: Scheduler) -> control_pb2.GetLoadResponse:
    """How busy the scheduler and each of its workers are."""
    load = core.load()
    return control_pb2.GetLoadResponse(
        running=load.running,
        waiting=load.waiting,
        waiting_tokens=load.waiting_tokens,
        cache_usage=load.used_blocks / load.total_blocks if load.total_blocks else 0.0,
        blocks=control_pb2.BlockCounts(
            free=load.free_blocks,
            cached=load.cached_blocks,
            used=load.used_blocks,
            total=load.total_blocks,
        ),
        totals=asdict(core.state.totals),
        workers=map(_worker_load, core.state.workers.values()),
    )


async def worker_infos(posts: Mapping[str, Post], max_message_bytes: int) -> list[control_pb2.ServiceInfo]:
    """Each worker's own account, and why it is not in use if it is not; asked all at once."""
    told = await asyncio.gather(
        *(_worker_info(address, post.reason, max_message_bytes) for address, post in posts.items())
    )
    return [info for infos in told for info in infos]


async def _worker_info(address: str, reason: str, max_message_bytes: int) -> list[control_pb2.ServiceInfo]:
    async with open_channel(address, max_message_bytes) as channel:
        stub: Any = control_pb2_grpc.ControlServiceStub(channel)
        try:
            answer = await stub.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=_WORKER_ANSWER_S)
        except grpc.aio.AioRpcError as error:
            why = reason or f"{error.code().name}: {error.details()}"
            return [control_pb2.ServiceInfo(service="worker", state=UNREACHABLE, address=address, reason=why)]
    infos = list(answer.services)
    for info in infos[:1]:
        info.address, info.reason = address, reason
    return infos


def _worker_load(worker: Worker) -> control_pb2.WorkerLoad:
    pool = worker.cache.pool
    return control_pb2.WorkerLoad(
        address=worker.name,
        running=len(worker.running),
        seats=worker.slots.count,
        blocks=control_pb2.BlockCounts(
            free=pool.num_free, cached=pool.num_cached, used=pool.num_used, total=pool.num_blocks
        ),
        takes_new=worker.takes_new,
    )
