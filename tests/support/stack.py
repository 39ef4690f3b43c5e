"""Runs the three services as real processes on free ports, to be killed, stopped and restarted by tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.v1 import control_pb2, control_pb2_grpc

SERVICES = ("worker", "scheduler", "tokenizer")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Stack:
    """Three services over one model. ``flags`` are per service, by setting name.

    The worker computes on one thread unless they say otherwise: tests share the machine with other processes.
    """

    model: str
    directory: Path
    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in SERVICES})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    python: Path | str = sys.executable

    @property
    def address(self) -> str:
        """The door."""
        return self.address_of("tokenizer")

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
            "scheduler": {"worker": self.address_of("worker")},
            "tokenizer": {"scheduler": self.address_of("scheduler")},
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in services or SERVICES:
            options: dict[str, object] = {"listen": self.address_of(name), "model": self.model}
            options |= neighbours[name] | dict(self.flags.get(name, {}))
            command = [str(self.python), "-m", f"hundredfold_{name}"]
            for option, value in options.items():
                command += [f"--{option.replace('_', '-')}", str(value)]
            log = open(self.directory / f"{name}.log", "ab")  # noqa: SIM115 (the child keeps it)
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            log.close()

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Wait until the door answers SERVING; a service that ends first fails with its log."""
        deadline = time.monotonic() + timeout_s
        while True:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.log(name)[-4000:]}")
            if self.is_serving("tokenizer"):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in SERVICES)
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

    def wait_idle(self, timeout_s: float = 10) -> control_pb2.GetLoadResponse:
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

    def resident_bytes(self, service: str) -> int:
        """Anonymous resident memory of a service."""
        status = Path(f"/proc/{self.processes[service].pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    def stop(self) -> dict[str, int]:
        """Drain all, the door first; exit codes by service."""
        codes = {}
        for name in reversed(SERVICES):
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
