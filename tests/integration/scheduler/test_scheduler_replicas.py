"""Several workers over gRPC: found, refused, looked up, drained, silent, killed; requests outlive it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from hundredfold_scheduler import worker_link
from hundredfold_scheduler.addresses import check_address, look_up
from support.eventually import eventually
from support.fake_worker import Script, expected_output
from support.grpc_worker import GrpcWorker
from support.replica import Told
from support.scheduler_fleet import Fleet, scheduler_fleet


def prompt(seed: int, length: int = 30) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


async def assert_right(told: Told, ids: list[int], max_tokens: int) -> None:
    await told.wait(20)
    assert told.failure is None
    assert told.ids == expected_output(ids, max_tokens, Script(), 1000)


def seated(worker: GrpcWorker) -> int:
    return sum(len(plan.new_sequences) for plan in worker.plans)


async def busy(fleet: Fleet, count: int = 12, max_tokens: int = 60) -> list[Told]:
    """Requests of a replica, some of which run on every worker."""
    replica = await fleet.replica()
    told = [await replica.submit(i, prompt(i), max_tokens) for i in range(count)]
    await asyncio.gather(*(one.wait_ids(3) for one in told[:6]))
    assert all(worker.running for worker in fleet.service.core.state.workers.values())
    return told


async def test_all_that_are_listed_work_together() -> None:
    async with scheduler_fleet([GrpcWorker(step_s=0.005), GrpcWorker(step_s=0.005)]) as fleet:
        await fleet.wait_connected(*fleet.workers)
        told = await busy(fleet)
        load = await fleet.service.load()
        assert {worker.address for worker in load.workers} == {worker.address for worker in fleet.workers}
        assert sum(worker.running for worker in load.workers) == load.running > 0
        assert load.blocks.total == sum(worker.blocks.total for worker in load.workers) == 512
        assert all(worker.takes_new and worker.seats == 16 for worker in load.workers)
        for i, one in enumerate(told):
            await assert_right(one, prompt(i), 60)
        assert min(map(seated, fleet.workers)) >= 2
        await fleet.wait_idle()


async def test_a_worker_of_another_model_is_left_out_and_said_to_be() -> None:
    """The others serve on; who asks is told which one is not used and why."""
    workers = [GrpcWorker(), GrpcWorker()]
    async with scheduler_fleet(workers) as fleet:
        await fleet.wait_connected(*workers)
        replica = await fleet.replica()
        await workers[1].stop()
        workers[1].fingerprint = "0" * 64
        await workers[1].start()
        posts = fleet.service.workers.posts
        await eventually(lambda: "not ffff" in posts[workers[1].address].reason)
        assert fleet.connected == {workers[0].address}
        assert fleet.service.host.state == "ready"
        told = [await replica.submit(i, prompt(i), 8) for i in range(4)]
        for i, one in enumerate(told):
            await assert_right(one, prompt(i), 8)
        infos = {info.address: info for info in await fleet.service.info()}
        assert "not ffff" in infos[workers[1].address].reason
        assert set(infos) == {"", workers[0].address, workers[1].address}


async def test_one_worker_under_two_addresses_counts_once() -> None:
    worker = GrpcWorker()
    await worker.start()
    port = worker.address.rpartition(":")[2]
    await worker.stop()
    listed = (worker.address, f"localhost:{port}")
    async with scheduler_fleet([worker], listed=listed) as fleet:
        posts = fleet.service.workers.posts
        await eventually(lambda: any("connected already" in post.reason for post in posts.values()))
        assert len(fleet.connected) == 1
        replica = await fleet.replica()
        await assert_right(await replica.submit(0, prompt(0), 8), prompt(0), 8)


async def test_a_name_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers join and leave with the records of a name, while requests run. What is connected stays until it
    goes by itself, and a resolver in trouble changes nothing.
    """
    first = GrpcWorker(step_s=0.005)
    await first.start()
    port = first.address.rpartition(":")[2]
    await first.stop()
    second = GrpcWorker(step_s=0.005, host="127.0.0.2", address=f"127.0.0.2:{port}")
    records: list[str] | Exception = ["127.0.0.1"]

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "workers.test"
        if isinstance(records, Exception):
            raise records
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (record, port)) for record in records]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    listed = (f"dns:///workers.test:{port}",)
    async with scheduler_fleet([first], listed=listed, worker_lookup_s=0.1) as fleet:
        replica = await fleet.replica()
        told = [await replica.submit(i, prompt(i), 200) for i in range(20)]
        await told[0].wait_ids(3)
        records = ["127.0.0.1", "127.0.0.2"]
        await second.start()
        await fleet.wait_connected(first, second)
        await eventually(lambda: seated(second) > 0)
        for trouble in (socket.gaierror(socket.EAI_AGAIN, "try again"), ["127.0.0.2"]):
            records = trouble
            await asyncio.sleep(0.4)
            assert fleet.connected == {first.address, second.address}
        await first.stop()
        await eventually(lambda: set(fleet.service.workers.posts) == {second.address})
        for i, one in enumerate(told):
            await assert_right(one, prompt(i), 200)
        await fleet.wait_idle()
        await second.stop()


async def test_a_worker_that_leaves_finishes_what_it_has() -> None:
    """It gets nothing new from then on, and its end is no loss."""
    workers = [GrpcWorker(step_s=0.005), GrpcWorker(step_s=0.005)]
    async with scheduler_fleet(workers) as fleet:
        await fleet.wait_connected(*workers)
        told = await busy(fleet)
        workers[0].leave()
        core = fleet.service.core
        await eventually(lambda: core.state.workers[workers[0].address].leaving)
        before = seated(workers[0])
        takes_new = {worker.address: worker.takes_new for worker in (await fleet.service.load()).workers}
        assert takes_new == {workers[0].address: False, workers[1].address: True}
        replica = await fleet.replica("other")
        more = [await replica.submit(i, prompt(i), 20) for i in range(100, 110)]
        for i, one in enumerate(more, 100):
            await assert_right(one, prompt(i), 20)
        for i, one in enumerate(told):
            await assert_right(one, prompt(i), 60)
        assert seated(workers[0]) == before
        assert core.state.totals.replays == 0
        await workers[0].stop()
        await fleet.wait_connected(workers[1])
        assert core.state.totals.worker_losses == 0
        await workers[0].start()
        await fleet.wait_connected(*workers)
        await fleet.wait_idle()


async def test_what_a_drain_cuts_off_goes_on_elsewhere() -> None:
    """The grace is over before the answers are: they are replayed, and nobody is suspected of a crash."""
    workers = [GrpcWorker(step_s=0.005), GrpcWorker(step_s=0.005)]
    async with scheduler_fleet(workers) as fleet:
        await fleet.wait_connected(*workers)
        told = await busy(fleet, max_tokens=150)
        workers[0].leave()
        state = fleet.service.core.state
        await eventually(lambda: state.workers[workers[0].address].leaving)
        await workers[0].stop()
        for i, one in enumerate(told):
            await assert_right(one, prompt(i), 150)
        assert state.totals.replays > 0
        assert state.totals.worker_losses == 0


async def test_a_silent_worker_gets_nothing_new_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process keeps its connections: only unanswered calls tell, long before ``step_timeout_s``."""
    monkeypatch.setattr(worker_link, "_PROBE_S", 0.1)
    workers = [GrpcWorker(step_s=0.005), GrpcWorker(step_s=0.005)]
    async with scheduler_fleet(workers, worker_silence_s=1.0) as fleet:
        await fleet.wait_connected(*workers)
        told = await busy(fleet, max_tokens=100)
        workers[0].deaf = True
        state = fleet.service.core.state
        await eventually(lambda: state.workers[workers[0].address].silent)
        replica = await fleet.replica("other")
        at_once = await replica.submit(100, prompt(100), 10)
        await assert_right(at_once, prompt(100), 10)
        await fleet.wait_connected(workers[1])
        for i, one in enumerate(told):
            await assert_right(one, prompt(i), 100)
        assert state.totals.worker_losses == 1
        workers[0].deaf = False
        await fleet.wait_connected(*workers)
        await fleet.wait_idle()


async def test_one_of_two_is_killed_again_and_again() -> None:
    """What ran there goes on with the other one at once, without waiting for its return."""
    workers = [GrpcWorker(step_s=0.003), GrpcWorker(step_s=0.003)]
    async with scheduler_fleet(workers) as fleet:
        for life in range(3):
            await fleet.wait_connected(*workers)
            replica = await fleet.replica(f"life-{life}")
            told = [await replica.submit(i, prompt(i + life), 60) for i in range(16)]
            await asyncio.gather(*(one.wait_ids(3) for one in told[:8]))
            victim = workers[life % 2]
            await victim.stop()
            for i, one in enumerate(told):
                await assert_right(one, prompt(i + life), 60)
            await fleet.wait_idle()
            await victim.start()
        assert fleet.service.core.state.totals.worker_losses == 3


async def test_a_request_is_refused_only_if_no_worker_holds_it() -> None:
    workers = [GrpcWorker(max_model_len=128), GrpcWorker(max_model_len=512, block_size=32)]
    async with scheduler_fleet(workers) as fleet:
        await fleet.wait_connected(*workers)
        replica = await fleet.replica()
        assert replica.welcomes[-1].max_model_len == 512
        fits = await replica.submit(0, prompt(0, 300), 20)
        too_long = await replica.submit(1, prompt(1, 600), 20)
        await assert_right(fits, prompt(0, 300), 20)
        await too_long.wait()
        assert too_long.failure is not None
        assert "512" in too_long.failure.message
        assert seated(workers[0]) == 0


@pytest.mark.parametrize(
    "wrong", ["worker", "dns:///worker", "dns:///unix:/w", "host:port", "dns://1.1.1.1/w:1"]
)
def test_addresses_that_are_none(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"is not|needs|has port"):
        check_address(wrong)


async def test_a_name_that_does_not_exist_stands_for_nobody() -> None:
    assert await look_up("127.0.0.1:7") == ("127.0.0.1:7",)
    assert await look_up("dns:///localhost:7") in (("127.0.0.1:7",), ("127.0.0.1:7", "[::1]:7"))
    assert await look_up("dns:///no-such-name.invalid:7") in ((), None)
