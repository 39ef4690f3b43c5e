"""The probe against a real health service."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def served() -> Iterator[tuple[str, health.HealthServicer]]:
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(0)


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hundredfold.probe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_exit_code_follows_readiness(served: tuple[str, health.HealthServicer]):
    address, servicer = served
    servicer.set("liveness", SERVING)
    servicer.set("readiness", NOT_SERVING)
    refused = probe(address)
    assert (refused.returncode, "NOT_SERVING" in refused.stderr) == (1, True)
    assert probe(address, "liveness").returncode == 0
    servicer.set("readiness", SERVING)
    assert probe(address).returncode == 0


def test_a_name_nobody_knows_is_not_healthy(served: tuple[str, health.HealthServicer]):
    done = probe(served[0], "nonsense")
    assert (done.returncode, "NOT_FOUND" in done.stderr) == (1, True)


def test_a_closed_port_is_not_healthy():
    with socket.socket() as taken:  # bound and not listening: nobody else can open it meanwhile
        taken.bind(("127.0.0.1", 0))
        done = probe(f"127.0.0.1:{taken.getsockname()[1]}")
    assert (done.returncode, "UNAVAILABLE" in done.stderr) == (1, True)


def test_wrong_usage_is_told_apart():
    assert probe().returncode == 2
