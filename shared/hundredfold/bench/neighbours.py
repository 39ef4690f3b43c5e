"""Asks a door and the services behind it what they are and how busy, each at its own address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from hundredfold.bench.server import CALL_TIMEOUT_S, ServerError
from hundredfold.rpc import open_channel, run_loop
from hundredfold.v1.control_pb2 import GetLoadRequest, GetLoadResponse, GetServerInfoRequest, ServiceInfo
from hundredfold.v1.control_pb2_grpc import ControlServiceStub

if TYPE_CHECKING:
    from hundredfold.v1.control_pb2_grpc import ControlServiceAsyncStub

MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The services behind a door."""

    address: str
    services: Sequence[ServiceInfo]

    def of(self, service: str) -> list[ServiceInfo]:
        """Those of one kind that answer."""
        return [info for info in self.services if info.service == service and info.state != "unreachable"]

    @property
    def runtime(self) -> ServiceInfo | None:
        """The first worker that says how it computes."""
        return next((info for info in self.of("worker") if info.HasField("runtime")), None)

    def address_of(self, info: ServiceInfo) -> str:
        """Where a service is asked: its own address, the door's for the door."""
        return info.address or self.address


@dataclass(frozen=True, slots=True)
class Loads:
    """How busy each kind of service is at one moment."""

    door: GetLoadResponse | None = None
    scheduler: GetLoadResponse | None = None
    workers: Sequence[GetLoadResponse] = ()
    unasked: Mapping[str, str] = field(default_factory=dict)
    """Why a service could not be asked, by name and address."""

    def worker_total(self, name: str) -> int:
        """A counter of the workers, added up."""
        return sum(load.totals.get(name, 0) for load in self.workers)

    def scheduler_total(self, name: str) -> int:
        """A counter of the scheduler."""
        return self.scheduler.totals.get(name, 0) if self.scheduler is not None else 0


def ask_neighbours(address: str) -> Neighbours:
    """Who is there. Raises ServerError."""
    return run_loop(_ask_neighbours(address))


def ask_loads(neighbours: Neighbours) -> Loads:
    """How busy they are; one that cannot be asked is told of in ``unasked``."""
    return run_loop(_ask_loads(neighbours))


def output_tokens(neighbours: Neighbours) -> int | None:
    """Tokens that came out of the scheduler's workers since it started; None when it cannot be asked."""
    for info in neighbours.of("scheduler"):
        answer = run_loop(_ask_load(neighbours.address_of(info)))
        if not isinstance(answer, str):
            return answer.totals.get("output_tokens", 0)
    return None


async def _ask_neighbours(address: str) -> Neighbours:
    async with open_channel(address, MAX_MESSAGE_BYTES) as channel:
        control: ControlServiceAsyncStub = ControlServiceStub(channel)  # type: ignore[assignment]
        try:
            answer = await control.GetServerInfo(GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise ServerError(f"{address} answered {failure.code().name}: {failure.details()}") from failure
    return Neighbours(address, list(answer.services))


async def _ask_loads(neighbours: Neighbours) -> Loads:
    found: dict[str, list[GetLoadResponse]] = {"tokenizer": [], "scheduler": [], "worker": []}
    unasked: dict[str, str] = {}
    for info in neighbours.services:
        if info.service not in found:
            continue
        where = neighbours.address_of(info)
        answer = await _ask_load(where)
        if isinstance(answer, str):
            unasked[f"{info.service} at {where}"] = answer
        else:
            found[info.service].append(answer)
    door, scheduler = found["tokenizer"], found["scheduler"]
    return Loads(
        door[0] if door else None, scheduler[0] if scheduler else None, tuple(found["worker"]), unasked
    )


async def _ask_load(address: str) -> GetLoadResponse | str:
    async with open_channel(address, MAX_MESSAGE_BYTES) as channel:
        control: ControlServiceAsyncStub = ControlServiceStub(channel)  # type: ignore[assignment]
        try:
            return await control.GetLoad(GetLoadRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            return failure.code().name
