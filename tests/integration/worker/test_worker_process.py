"""The worker as a process: starts that fail say why, signals drain, idleness costs nothing."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.errors import StartError
from hundredfold.internal.v1 import worker_pb2, worker_pb2_grpc
from hundredfold.v1 import control_pb2, control_pb2_grpc
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import open_registries, start
from support.nursery import Nursling, nursery
from support.pace import in_time
from support.plan_client import PlanClient, params
from support.ports import free_port

SYS_TGKILL = {"x86_64": 234, "aarch64": 131}


class Process:
    """A worker's process: ``python -m hundredfold_worker`` as users start it, or a fork of one."""

    def __init__(self, directory: Path, *, from_nothing: bool = False, **flags: object) -> None:
        self.port = free_port()
        self.log_path = directory / "worker.log"
        options = {"listen": self.address, "num_threads": 1, "dtype": "fp32", "num_kv_blocks": 128}
        options |= {"max_num_seqs": 4} | flags
        arguments = []
        for name, value in options.items():
            if value is not None:
                arguments += [f"--{name.replace('_', '-')}", str(value)]
        self.child: subprocess.Popen[bytes] | Nursling
        if from_nothing:
            command = [sys.executable, "-m", "hundredfold_worker", *arguments]
            with self.log_path.open("ab") as log:
                self.child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        else:
            self.child = nursery("hundredfold_worker").start(arguments, self.log_path)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait_info(self, ready: bool = True) -> worker_pb2.GetWorkerInfoResponse:
        """Wait until it answers (and is ready)."""
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert self.child.poll() is None, self.log
            with grpc.insecure_channel(self.address) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                try:
                    info = stub.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest(), timeout=2)
                except grpc.RpcError:
                    info = None
            if info is not None and (info.ready or not ready):
                return info
            time.sleep(0.05)
        raise TimeoutError(self.log)

    def readiness(self) -> int:
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return int(stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=30).status)


@pytest.fixture
def run_worker(tmp_path: Path) -> Iterator[type[Process]]:
    started: list[Process] = []

    def run(**flags: object) -> Process:
        started.append(Process(tmp_path, **flags))
        return started[-1]

    yield run  # type: ignore[misc]
    for process in started:
        if process.child.poll() is None:
            process.child.kill()
            process.child.wait()


def test_life_of_a_worker(run_worker, tiny_checkpoint: str) -> None:
    """Answers while it loads, is ready after it, tells what it is, idles for free, leaves on a signal."""
    worker = run_worker(model=tiny_checkpoint, from_nothing=True)
    loading = worker.wait_info(ready=False)
    assert loading.protocol_version == 1
    info = worker.wait_info()
    assert info.incarnation == loading.incarnation
    assert (info.vocab_size, info.max_model_len, info.num_blocks, info.block_size) == (512, 2048, 128, 32)
    assert worker.readiness() == health_pb2.HealthCheckResponse.SERVING
    for phase in ("load", "measure", "warm up", "allocate"):
        assert f'phase="{phase}"' in worker.log or f"phase={phase}" in worker.log

    with grpc.insecure_channel(worker.address) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        (told,) = stub.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=30).services
        load = stub.GetLoad(control_pb2.GetLoadRequest(), timeout=30)
    assert (told.service, told.state, told.incarnation) == ("worker", "ready", info.incarnation)
    assert told.model.architecture == "LlamaForCausalLM"
    assert told.model.fingerprint == info.model_fingerprint
    assert (told.runtime.device, told.runtime.dtype, told.runtime.num_threads) == ("cpu", "fp32", 1)
    assert {s.subject for s in told.runtime.selections} >= {
        "quantization",
        "kernels",
        "elementwise",
        "attention",
        "kv_cache",
    }
    assert all(s.reason for s in told.runtime.selections)
    assert {p.state for p in told.plugins} <= {"loaded", "available", "denied", "failed"}
    assert any(p.name == "torch" and p.state == "loaded" for p in told.plugins)
    assert told.libraries["torch"]
    assert told.peak_resident_bytes >= told.resident_bytes > 0
    assert told.settings["max_num_batched_tokens"] == "512"
    assert (load.running, load.totals["steps"]) == (0, 0)

    process = psutil.Process(worker.child.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(3)
    in_time(sum(process.cpu_times()[:2]) - before, 0.02 * 3 + 0.02, "rest")

    worker.child.send_signal(signal.SIGTERM)
    assert worker.child.wait(60) == 0


async def test_a_drain_lets_sequences_finish(run_worker, tiny_checkpoint: str) -> None:
    """Report 127: readiness falls first, the scheduler is told, the stream goes on, then it ends UNAVAILABLE,
    the process with 0; no scheduler gets in meanwhile.
    """
    worker = run_worker(model=tiny_checkpoint)
    await asyncio.to_thread(worker.wait_info)
    async with PlanClient(worker.address, in_flight=2) as client:
        await client.connect()
        tracked = client.add(0, [5, 6, 7], params(max_tokens=30))
        await client.send(client.make_plan())
        await client.receive()
        os.kill(worker.child.pid, signal.SIGTERM)
        async with asyncio.timeout(30):
            while worker.readiness() == health_pb2.HealthCheckResponse.SERVING:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(grpc.aio.AioRpcError, match="draining"):
            await client.stub.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest(), timeout=30)
        await client.run()
        assert client.leaving
        assert len(tracked.output) == 30
        code, details = await client.status()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "drained" in details
    assert await asyncio.to_thread(worker.child.wait, 60) == 0


def test_a_signal_that_another_thread_takes_is_heard(run_worker, tiny_checkpoint: str) -> None:
    """Python calls handlers on the main thread alone, which waits for orders and is not woken."""
    worker = run_worker(model=tiny_checkpoint)
    worker.wait_info()
    others = [t.id for t in psutil.Process(worker.child.pid).threads() if t.id != worker.child.pid]
    ctypes.CDLL(None).syscall(SYS_TGKILL[os.uname().machine], worker.child.pid, others[0], signal.SIGTERM)
    assert worker.child.wait(60) == 0


async def test_a_killed_scheduler_is_noticed_at_once(
    run_worker, tiny_checkpoint: str, tmp_path: Path
) -> None:
    """Its socket closes; the next one is welcomed within a second, on the same incarnation."""
    worker = run_worker(model=tiny_checkpoint)
    info = await asyncio.to_thread(worker.wait_info)
    script = tmp_path / "scheduler.py"
    script.write_text(
        "import asyncio, sys\n"
        "from support.plan_client import PlanClient, params\n"
        "async def main():\n"
        "    async with PlanClient(sys.argv[1]) as client:\n"
        "        await client.connect()\n"
        "        client.add(0, [1, 2], params(max_tokens=500))\n"
        "        await client.send(client.make_plan())\n"
        "        await client.receive()\n"
        "        print('running', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    victim = await asyncio.create_subprocess_exec(
        sys.executable, str(script), worker.address, stdout=subprocess.PIPE, env=environment
    )
    assert victim.stdout is not None
    assert await victim.stdout.readline() == b"running\n"
    victim.kill()
    await victim.wait()
    began = time.monotonic()
    while True:
        async with PlanClient(worker.address) as client:
            try:
                await client.connect()
                break
            except grpc.aio.AioRpcError as error:
                refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
                if not refused or time.monotonic() > began + 30:
                    raise
                await asyncio.sleep(0.05)
    in_time(time.monotonic() - began, 1)
    assert (await asyncio.to_thread(worker.wait_info)).incarnation == info.incarnation


FAILING = {
    "no such model": ({"model": "/nowhere/model.gguf"}, "does not exist"),
    "unknown name": ({"model": "smollm3-135m"}, "no model is called"),
    "unknown plugin": ({"attention": "fancy"}, "fancy"),
    "denied plugin": ({"deny_plugins": ("attention:cpu", "attention:torch")}, "attention"),
    "too little memory": ({"memory_utilization": 0.0001, "num_kv_blocks": None}, "memory_utilization 0.0001"),
    "too many blocks": ({"num_kv_blocks": 16_000_000}, "lower num_kv_blocks"),
    "too long a context": ({"max_model_len": 999_999}, "max_model_len is 999999"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_start_that_fails_says_why(tiny_checkpoint: str, case: str) -> None:
    """Report 14, 128, 162, 164: the cause, by name and number."""
    changes, told = FAILING[case]
    values = {"model": tiny_checkpoint, "dtype": "fp32", "num_threads": 1, "num_kv_blocks": 128} | changes
    settings = WorkerSettings(**values)  # type: ignore[arg-type]
    with pytest.raises(StartError) as failed:
        start(settings, open_registries(settings))
    assert told in str(failed.value)


def test_a_process_that_cannot_start_ends(run_worker, tiny_checkpoint: str) -> None:
    """Report 14, 128: exit code not 0, one line of cause in the log, no traceback."""
    worker = run_worker(
        from_nothing=True, model=tiny_checkpoint, num_kv_blocks=None, memory_utilization=0.0001
    )
    assert worker.child.wait(60) == 1
    assert "cannot start" in worker.log
    assert "memory_utilization 0.0001" in worker.log
    assert "Traceback" not in worker.log


def test_a_port_in_use(run_worker, tiny_checkpoint: str) -> None:
    first = run_worker(model=tiny_checkpoint)
    first.wait_info(ready=False)
    second = run_worker(model=tiny_checkpoint, listen=first.address)
    assert second.child.wait(60) == 1
    assert "cannot start" in second.log


def test_signals_while_it_loads(run_worker, tiny_checkpoint: str) -> None:
    """A terminal and a supervisor both tell the process: the end goes on."""
    worker = run_worker(model=tiny_checkpoint)
    worker.wait_info(ready=False)
    worker.child.send_signal(signal.SIGINT)
    worker.child.send_signal(signal.SIGTERM)
    assert worker.child.wait(60) == 0
    assert "Traceback" not in worker.log
