"""`hundredfold serve` as a person uses it: one command up, an answer, every service killed, Ctrl-C down."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hundredfold import Client
from hundredfold.client import RetryPolicy
from hundredfold.supervisor.house import SERVICES
from support.ports import free_port

STOP_S = 120
"""More than `serve` gives all of its services together before it kills them."""


class Serving:
    """A running `hundredfold serve`."""

    def __init__(self, model: str, output: Path, *flags: str) -> None:
        self.output = output
        self.address = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        ports = [
            f"--http={self.http}",
            f"--scheduler-listen=127.0.0.1:{free_port()}",
            f"--worker-listen=127.0.0.1:{free_port()}",
        ]
        command = [
            sys.executable,
            "-c",
            "from hundredfold.cli.main import run; run()",
            "serve",
            "--model",
            model,
        ]
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, f"--listen={self.address}", *ports, *flags],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "200"},
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def until(self, pattern: str, timeout_s: float = 240) -> None:
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def children(self) -> dict[str, psutil.Process]:
        """The services' processes by name."""
        return {name: process for name in SERVICES for process in self.processes(name)}

    def processes(self, service: str) -> list[psutil.Process]:
        """All processes of one service."""
        children = psutil.Process(self.process.pid).children()
        return [process for process in children if f"hundredfold_{service}" in process.cmdline()]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def serving(tiny_model: str, output: Path) -> Iterator[Serving]:
    running = Serving(tiny_model, output, "--sample", "--set", "worker.dtype=fp32")
    try:
        running.until("is ready after")
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_up_answer_kill_each_and_down(serving: Serving):
    serving.until(r"why is the sky blue\?\s+\S+")
    for place in ("127.0.0.1:", serving.address, "hundredfold generate", f"curl http://{serving.http}/v1/"):
        assert place in serving.text
    with Client(serving.address, retry=RetryPolicy(connect_s=30, resume_s=60)) as client:
        prompt = "A long story about a river: "
        undisturbed = client.generate(prompt, max_tokens=1500, temperature=0, ignore_eos=True).result()
        assert len(undisturbed.token_ids) == 1500
        before = serving.children()
        assert set(before) == set(SERVICES)

        def kill_each() -> None:
            for name in SERVICES:
                time.sleep(1)
                before[name].kill()

        killing = threading.Thread(target=kill_each)
        killing.start()
        texts = []
        while killing.is_alive() or not texts:  # the machine decides how many answers the killing takes
            stream = client.generate(prompt, max_tokens=1500, temperature=0, ignore_eos=True)
            texts.append("".join(stream.texts()))
        killing.join()
        assert set(texts) == {undisturbed.text}
    for name in SERVICES:
        serving.until(f"{name} is ready again")
    after = serving.children()
    assert not {p.pid for p in after.values()} & {p.pid for p in before.values()}
    serving.process.send_signal(signal.SIGINT)
    assert serving.process.wait(STOP_S) == 0, serving.text
    assert not any(process.is_running() for process in after.values())


def test_replicas(tiny_model: str, output: Path):
    """Two workers and two doors: both doors answer, the scheduler knows both workers, and one that is asked
    to stop is started again while the house goes on.
    """
    running = Serving(tiny_model, output, "--workers=2", "--tokenizers=2")
    try:
        running.until("is ready after")
        host, port = running.address.split(":")
        second = f"{host}:{int(port) + 10}"
        for address in (running.address, second):
            assert address in running.text
            with Client(address) as client:
                assert len(client.generate("hi", max_tokens=8, ignore_eos=True).result().token_ids) == 8
        with Client(running.address) as client:
            deadline = time.monotonic() + 240
            while True:  # one worker is enough to be ready; the other is found when it has loaded
                workers = [service for service in client.info() if service.service == "worker"]
                if [(worker.state, worker.reason) for worker in workers] == [("ready", "")] * 2:
                    break
                assert time.monotonic() < deadline, workers
                time.sleep(0.2)
            assert len({worker.address for worker in workers}) == 2
            assert {worker.settings["workers_here"] for worker in workers} == {"2"}
        (leaving, _) = running.processes("worker")
        leaving.terminate()
        running.until("worker(-2)? is ready again")
        with Client(f"{running.address},{second}") as client:
            assert len(client.generate("hi", max_tokens=8, ignore_eos=True).result().token_ids) == 8
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(STOP_S) == 0, running.text
    finally:
        running.process.kill()
        running.process.wait()


def test_children_die_with_a_killed_supervisor(serving: Serving):
    children = serving.children()
    serving.process.kill()
    serving.process.wait()
    _, alive = psutil.wait_procs(children.values(), timeout=30)
    assert alive == []


def test_a_port_in_use_is_said_and_ends_it(tiny_model: str, output: Path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        running = Serving(tiny_model, output, f"--listen=127.0.0.1:{port}")
        assert running.process.wait(STOP_S) == 1
    assert "before it was ready" in running.text
    assert str(port) in running.text


def test_a_wrong_setting_is_said_and_ends_it(tiny_model: str, output: Path):
    running = Serving(tiny_model, output, "--set", "tokenizer.max_requests=none-such")
    assert running.process.wait(STOP_S) == 2
    assert "max_requests" in running.text
    assert "tokenizer cannot use its configuration" in running.text
    assert "--max-requests is --set tokenizer.max_requests" in running.text


def test_a_model_that_is_not_there_is_said_at_once(output: Path):
    running = Serving("./no/such/model", output)
    assert running.process.wait(STOP_S) == 2
    assert "model path './no/such/model' does not exist" in running.text
