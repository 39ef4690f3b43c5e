"""The supervisor over stand-in children: order, restarts, storms, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import support.supervised
from support.pace import in_time

SCRIPT = Path(support.supervised.__file__)


class Run:
    """One supervisor process and what came of it."""

    def __init__(self, directory: Path, children: list[dict], **told: object) -> None:
        self.directory = directory
        self.output = directory / "output"
        told = {"directory": str(directory), "children": children, **told}
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(told)], stdout=file, stderr=file
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def events(self, kind: str) -> list[str]:
        path = self.directory / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1] for line in lines if line.startswith(kind)]

    def pids(self) -> dict[str, int]:
        """The latest process of each child."""
        lines = (self.directory / "events").read_text().splitlines()
        return {line.split()[1]: int(line.split()[2]) for line in lines if line.startswith("start")}

    def until(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def ready(self) -> None:
        self.until(lambda: "READY" in self.text)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, timeout_s: float = 60) -> int:
        return self.process.wait(timeout_s)

    def all_gone(self) -> bool:
        return not any(psutil.pid_exists(pid) for pid in self.pids().values())


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def run(children: list[dict], **told: object) -> Run:
        runs.append(Run(tmp_path, children, **told))
        return runs[-1]

    yield run
    for made in runs:
        made.process.kill()
        made.process.wait()


def house(**flags: list[str]) -> list[dict]:
    return [{"name": name, "flags": flags.get(name, [])} for name in ("door", "scheduler", "worker")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_in_order_each_after_the_other(start: Start, number: signal.Signals):
    run = start(house(door=["--stop-takes", "0.5"], scheduler=["--ready-after", "0.3"]))
    run.ready()
    run.send(number)
    assert run.exit_code() == 0
    assert run.events("stop") == ["door", "scheduler", "worker"]
    assert run.text.count("READY") == 1
    assert f"OUTCOME stopped by {number.name}" in run.text
    assert run.all_gone()


def test_a_crashed_child_is_started_again_and_no_other(start: Start):
    run = start(house())
    run.ready()
    before = run.pids()
    for count in (1, 2):
        os.kill(run.pids()["worker"], signal.SIGKILL)
        run.until(lambda count=count: run.text.count("NOTE worker is ready again") == count)
    after = run.pids()
    assert after["worker"] != before["worker"]
    assert {name: after[name] for name in ("door", "scheduler")} == {
        n: before[n] for n in ("door", "scheduler")
    }
    assert "NOTE worker was killed by SIGKILL; restarting in 0.1 s" in run.text
    assert run.text.count("READY") == 1
    run.send(signal.SIGTERM)
    assert run.exit_code() == 0


def test_a_restart_storm_ends_the_house(start: Start):
    storm = ["--exit-code", "7", "--exit-after", "1.0", "--say", "the reason"]
    run = start(house(scheduler=storm), limit=2)
    assert run.exit_code(30) == 1
    assert (
        'OUTCOME scheduler ended with exit code 7, 3 times within 60 s; giving up ["the reason"]' in run.text
    )
    assert len(run.events("start")) == 5
    assert run.events("stop") == ["door", "worker"]
    assert run.all_gone()


@pytest.mark.parametrize(
    ("code", "message"), [(2, "cannot use its configuration"), (1, "before it was ready")]
)
def test_a_child_that_cannot_start_ends_the_house_with_its_last_lines(start: Start, code: int, message: str):
    flags = ["--exit-before-ready", "--exit-code", str(code), "--say", "field x is wrong"]
    run = start(house(worker=flags))
    assert run.exit_code() == code
    assert message in run.text
    assert '["field x is wrong"]' in run.text
    assert "READY" not in run.text
    assert run.all_gone()


def test_a_child_that_was_asked_to_stop_takes_the_house_with_it(start: Start):
    run = start(house())
    run.ready()
    os.kill(run.pids()["door"], signal.SIGTERM)
    assert run.exit_code() == 0
    assert run.events("stop") == ["door", "scheduler", "worker"]
    assert "OUTCOME door was asked to stop" in run.text


def test_a_replica_that_was_asked_to_stop_is_started_again(start: Start):
    """A rolling restart, one replica after the other: the house goes on."""
    run = start([*house(), {"name": "worker-2", "replicated": True}])
    run.ready()
    first = run.pids()["worker-2"]
    os.kill(first, signal.SIGTERM)
    run.until(lambda: run.pids()["worker-2"] != first)
    run.until(lambda: "worker-2 is ready again" in run.text)
    assert run.events("start").count("door") == 1
    run.send(signal.SIGTERM)
    assert run.exit_code() == 0
    assert run.events("stop") == ["worker-2", "door", "scheduler", "worker", "worker-2"]


def test_one_that_does_not_end_is_killed_in_its_time(start: Start):
    children = house(door=["--ignore-sigterm"])
    children[0]["stop_s"] = 0.5
    run = start(children)
    run.ready()
    run.send(signal.SIGTERM)
    assert run.exit_code() == 0
    assert "NOTE door did not end within 0.5 s; killing it" in run.text
    assert run.events("stop") == ["scheduler", "worker"]
    assert run.all_gone()


def test_a_second_signal_kills_at_once(start: Start):
    children = house(door=["--ignore-sigterm"])
    children[0]["stop_s"] = 60
    run = start(children)
    run.ready()
    run.send(signal.SIGINT)
    run.until(lambda: "NOTE finishing what runs" in run.text)
    begin = time.monotonic()
    run.send(signal.SIGINT)
    assert run.exit_code() == 0
    in_time(time.monotonic() - begin, 3)
    assert run.events("stop") == []
    assert run.all_gone()


def test_a_signal_before_anything_is_ready(start: Start):
    run = start(house(worker=["--ready-after", "60"]))
    run.until(lambda: len(run.events("start")) == 3)
    run.send(signal.SIGINT)
    run.until(lambda: "NOTE finishing" in run.text)
    run.send(signal.SIGINT)
    assert run.exit_code() == 0
    assert "READY" not in run.text
    assert run.all_gone()


def test_children_die_with_a_killed_supervisor(start: Start):
    run = start(house(door=["--ignore-sigterm"]))
    run.ready()
    run.send(signal.SIGKILL)
    run.exit_code()
    run.until(run.all_gone)


def test_any_output_is_passed_on_and_bounded(start: Start):
    run = start([{"name": "door", "flags": ["--say", "\x1b[31mred", "--say-long", "200000"]}])
    run.ready()
    run.send(signal.SIGTERM)
    assert run.exit_code() == 0
    lines = [line for line in run.text.splitlines() if line.startswith("door said ")]
    assert sum(line.count("x") for line in lines) == 200_000
    assert "door said \x1b[31mred" in lines
    assert max(map(len, lines)) < 140_000
