"""The services as processes before a paced worker or the real one, on Unix sockets as ``serve`` has them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.models import fingerprint, resolve
from hundredfold.v1 import control_pb2, control_pb2_grpc

HERE = Path(__file__).parent
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Sizes of thread pools; only the real worker has more than one thread in any."""


@dataclass
class ProfiledStack:
    """Worker, scheduler and tokenizer; ``worker`` are the flags of a paced one, ``None`` is the real one."""

    model: str
    directory: Path
    streams: int
    worker: Sequence[str] | None
    flags: dict[str, Sequence[str]] = field(default_factory=dict)
    """Further flags by service."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    door: str = field(default_factory=lambda: f"127.0.0.1:{_free_port()}")
    """Where clients find the tokenizer: by TCP, as most do."""
    gateway: str = field(default_factory=lambda: f"127.0.0.1:{_free_port()}")
    """Where HTTP is spoken, if at all."""
    with_gateway: bool = False

    @property
    def model_name(self) -> str:
        """What HTTP clients have to call it."""
        return resolve(self.model).name

    def socket(self, name: str) -> str:
        """Where a service listens."""
        return f"unix:{self.directory}/{name}.sock"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All ready, for as long as the block runs."""
        try:
            self._start()
            self._wait_ready()
            yield
        finally:
            for process in reversed(self.processes.values()):
                process.terminate()
            for process in self.processes.values():
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()

    def steps(self) -> int:
        """Steps that the scheduler has seen the end of."""
        with grpc.insecure_channel(self.socket("scheduler")) as channel:
            load = control_pb2_grpc.ControlServiceStub(channel).GetLoad(
                control_pb2.GetLoadRequest(), timeout=10
            )
        return int(load.totals["steps"])

    def _start(self) -> None:
        common = ["--model", self.model]
        if self.worker is None:
            cores = str(len(os.sched_getaffinity(0)))
            real = ["-m", "hundredfold_worker", *common, "--num-threads", cores]
            self._run("worker", [*real, "--max-num-seqs", str(max(8, self.streams))])
        else:
            files = resolve(self.model)
            paced = [str(HERE / "paced_worker.py"), "--fingerprint", fingerprint(files)]
            self._run("worker", [*paced, "--max-num-seqs", str(max(8, self.streams)), *self.worker])
        self._run("scheduler", ["-m", "hundredfold_scheduler", *common, "--worker", self.socket("worker")])
        door = ["-m", "hundredfold_tokenizer", *common, "--scheduler", self.socket("scheduler")]
        self._run("tokenizer", door, f",{self.door}")
        if self.with_gateway:
            side = ["-m", "hundredfold_gateway", "--door", self.socket("tokenizer")]
            self._run("gateway", [*side, "--control-listen", self.socket("gateway")], listen=self.gateway)

    def _run(self, name: str, arguments: Sequence[str], also_listen: str = "", listen: str = "") -> None:
        command = [sys.executable, *arguments, "--listen", listen or self.socket(name) + also_listen]
        command += self.flags.get(name, ())
        one = {} if name == "worker" and self.worker is None else dict.fromkeys(_POOLS, "1")
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | one)

    def _wait_ready(self, timeout_s: float = 600) -> None:
        deadline = time.monotonic() + timeout_s
        while not all(self._is_serving(name) for name in self.processes):
            for name, process in self.processes.items():
                if process.poll() is not None:
                    log = (self.directory / f"{name}.log").read_text()
                    raise SystemExit(f"{name} ended with {process.returncode}:\n{log[-4000:]}")
            if time.monotonic() > deadline:
                raise SystemExit(f"not ready after {timeout_s:g} s; logs are in {self.directory}")
            time.sleep(0.1)

    def _is_serving(self, name: str) -> bool:
        with grpc.insecure_channel(self.socket(name)) as channel:
            try:
                request = health_pb2.HealthCheckRequest(service="readiness")
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=2)
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
