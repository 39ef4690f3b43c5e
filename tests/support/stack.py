"""Runs the services as real processes on free ports, to be killed, stopped and restarted by tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.v1 import control_pb2, control_pb2_grpc
from support.nursery import Nursling, nursery
from support.ports import free_port

SERVICES = ("worker", "scheduler", "tokenizer")
GRACE_S = 240
"""A neighbour that was killed needs seconds to be back, and minutes on a machine that is busy otherwise."""


@dataclass
class Stack:
    """The services over one model, several workers and tokenizers if wanted: the second is called worker-2.
    ``flags`` are per service, by setting name, or for one of several by its own.

    A worker computes on one thread unless they say otherwise: tests share the machine with other processes.
    With another ``python`` than this one every process imports for itself.
    """

    model: str
    directory: Path
    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    workers: int = 1
    tokenizers: int = 1
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes] | Nursling] = field(default_factory=dict)
    python: Path | str = sys.executable

    def __post_init__(self) -> None:
        for name in self.names:
            self.ports.setdefault(name, free_port())

    @property
    def names(self) -> list[str]:
        """All of them, the workers first."""
        counts = {"worker": self.workers, "scheduler": 1, "tokenizer": self.tokenizers}
        return [
            service if number == 1 else f"{service}-{number}"
            for service in SERVICES
            for number in range(1, counts[service] + 1)
        ]

    @property
    def address(self) -> str:
        """The door, or all of them, comma-separated."""
        return self.addresses_of("tokenizer")

    def addresses_of(self, service: str) -> str:
        """Where all of one service listen, comma-separated."""
        return ",".join(self.address_of(name) for name in self.names if name.split("-")[0] == service)

    def address_of(self, service: str) -> str:
        """Where a service listens."""
        return f"127.0.0.1:{self.ports[service]}"

    def log(self, service: str) -> str:
        """What a service has logged so far."""
        path = self.directory / f"{service}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *services: str) -> None:
        """Start the named services, all when none is named."""
        neighbours: dict[str, dict[str, object]] = {
            "worker": {"num_threads": 1},
            "scheduler": {"worker": self.addresses_of("worker"), "recovery_grace_s": GRACE_S},
            "tokenizer": {"scheduler": self.address_of("scheduler"), "recovery_grace_s": GRACE_S},
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in services or self.names:
            service = name.split("-")[0]
            options: dict[str, object] = {"listen": self.address_of(name), "model": self.model}
            options |= (
                neighbours[service] | dict(self.flags.get(service, {})) | dict(self.flags.get(name, {}))
            )
            arguments = []
            for option, value in options.items():
                flag = option.replace("_", "-")
                switch = isinstance(value, bool)
                arguments += [f"--{'' if value else 'no-'}{flag}"] if switch else [f"--{flag}", str(value)]
            self.processes[name] = self._process(f"hundredfold_{service}", arguments, f"{name}.log")

    def _process(self, module: str, arguments: list[str], log: str) -> subprocess.Popen[bytes] | Nursling:
        if self.python == sys.executable:
            return nursery(module).start(arguments, self.directory / log)
        with open(self.directory / log, "ab") as output:
            command = [str(self.python), "-m", module, *arguments]
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Self]:
        """Everything, started and ready, for as long as the block runs."""
        self.start()
        try:
            self.wait_ready()
            yield self
        finally:
            self.stop()

    def wait_ready(self, timeout_s: float = 240) -> None:
        """Wait until all that were started answer SERVING; a service that ends first fails with its log."""
        deadline = time.monotonic() + timeout_s
        while True:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.log(name)[-4000:]}")
            if all(self.is_serving(name) for name in self.processes):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.names)
                raise TimeoutError(f"not ready after {timeout_s} s\n{logs}")
            time.sleep(0.1)

    def is_serving(self, service: str) -> bool:
        """Whether a service's readiness is SERVING."""
        with grpc.insecure_channel(self.address_of(service)) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="readiness"), timeout=2
                )
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def load(self, service: str = "scheduler") -> control_pb2.GetLoadResponse:
        """A service's own account of its load."""
        with grpc.insecure_channel(self.address_of(service)) as channel:
            return control_pb2_grpc.ControlServiceStub(channel).GetLoad(
                control_pb2.GetLoadRequest(), timeout=10
            )

    def wait_idle(self, timeout_s: float = 30) -> control_pb2.GetLoadResponse:
        """Wait until the scheduler holds no request and no used block."""
        deadline = time.monotonic() + timeout_s
        while True:
            load = self.load()
            if not (load.running or load.waiting or load.blocks.used):
                return load
            if time.monotonic() > deadline:
                raise TimeoutError(f"still busy after {timeout_s} s: {load}")
            time.sleep(0.05)

    def kill(self, service: str) -> None:
        """End a service as a crash would, and start it again."""
        self.processes[service].kill()
        self.processes[service].wait()
        self.start(service)

    def restart(self, service: str, timeout_s: float = 60) -> int:
        """Let a service drain and start it again; the exit code of the first."""
        process = self.processes[service]
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout_s)
        self.start(service)
        return code

    def resident_bytes(self, service: str) -> int:
        """Anonymous resident memory of a service."""
        status = Path(f"/proc/{self.processes[service].pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    def stop(self) -> dict[str, int]:
        """Drain all, the door first; exit codes by service."""
        codes = {}
        for name in reversed(self.names):
            process = self.processes.pop(name, None)
            if process is None:
                continue
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
            try:
                codes[name] = process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        return codes
