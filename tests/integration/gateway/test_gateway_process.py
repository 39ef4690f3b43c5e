"""The gateway as a process: starts that cannot succeed say why, stops are clean, kills leave nothing."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fake_door import FakeDoor, expected_text, serving
from support.pace import in_time
from support.ports import free_port

START_S = 120
"""Patience with a machine on which much else runs."""


class Process:
    """``hundredfold gateway``."""

    def __init__(self, output: Path, *flags: str) -> None:
        self.output = output
        command = [
            sys.executable,
            "-m",
            "hundredfold_gateway",
            "--control-listen",
            f"127.0.0.1:{free_port()}",
        ]
        with output.open("ab") as file:
            self.process = subprocess.Popen([*command, *flags], stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self.output.read_text()

    def until(self, words: str) -> None:
        deadline = time.monotonic() + START_S
        while words not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "gateway.log"


@pytest.fixture
def started() -> Iterator[list[Process]]:
    made: list[Process] = []
    yield made
    for one in made:
        one.process.kill()
        one.process.wait()


def test_a_start_that_fails_says_why(output: Path, started: list[Process]):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        started.append(Process(output, "--listen", taken))
        assert started[-1].process.wait(START_S) == 1
    assert f"cannot listen on {taken}: address already in use" in started[-1].text
    started.append(Process(output, "--listen", "unix:/no/such/place/x.sock"))
    assert started[-1].process.wait(START_S) == 1
    assert "there is no directory /no/such/place" in started[-1].text


@pytest.mark.parametrize("flag", ["--listen", "--control-listen"])
def test_a_reachable_address_is_refused(output: Path, started: list[Process], flag: str):
    started.append(Process(output, flag, "0.0.0.0:0"))
    assert started[-1].process.wait(START_S) == 2
    assert "can be reached by other machines" in started[-1].text


def test_killed_and_started_again_on_the_same_addresses(output: Path, started: list[Process], tmp_path: Path):
    addresses = f"127.0.0.1:{free_port()},unix:{tmp_path / 'http.sock'}"
    for _ in range(3):
        started.append(Process(output, "--listen", addresses))
        started[-1].until("answering HTTP")
        assert (tmp_path / "http.sock").stat().st_mode & 0o777 == 0o600
        started[-1].process.kill()
        started[-1].process.wait()
        output.unlink()
    started.append(Process(output, "--listen", addresses))
    started[-1].until("answering HTTP")
    started[-1].process.send_signal(signal.SIGTERM)
    assert started[-1].process.wait(START_S) == 0
    assert not (tmp_path / "http.sock").exists()


async def test_sigterm_lets_streams_finish(output: Path, started: list[Process]):
    async with serving(FakeDoor(step_s=0.02)) as door:
        port = free_port()
        started.append(Process(output, "--listen", f"127.0.0.1:{port}", "--door", f"127.0.0.1:{door.port}"))
        process = started[-1]
        await asyncio.to_thread(process.until, "ready service=gateway")

        def read() -> list[Any]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            body = json.dumps({"prompt": "x", "max_tokens": 60, "stream": True})
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            reply = connection.getresponse()
            reply.readline()
            os.kill(process.process.pid, signal.SIGTERM)
            return reply.read().decode().split("\n\n")

        frames = await asyncio.to_thread(read)
        assert frames[-2] == "data: [DONE]"
        texts = [
            json.loads(frame[6:])["choices"][0]["text"] for frame in frames if frame.startswith('data: {"id"')
        ]
        assert expected_text(60).endswith("".join(texts))
        assert await asyncio.to_thread(process.process.wait, START_S) == 0


def test_an_idle_gateway_is_idle(output: Path, started: list[Process]):
    started.append(Process(output, "--listen", f"127.0.0.1:{free_port()}", "--door", "127.0.0.1:1"))
    started[-1].until("answering HTTP")
    process = psutil.Process(started[-1].process.pid)
    time.sleep(1)
    before = sum(process.cpu_times()[:2])
    time.sleep(5)
    in_time((sum(process.cpu_times()[:2]) - before) / 5, 0.02, "a second of rest")
