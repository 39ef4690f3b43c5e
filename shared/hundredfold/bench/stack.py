"""Runs the services for a measurement: `hundredfold serve` itself, in a process that ends with this one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

import psutil

from hundredfold.probe import probe

READY_LIMIT_S = 300.0
STOP_LIMIT_S = 20.0
KEPT_LINES = 60
MAKE_UP: Mapping[str, str] = MappingProxyType(
    {"worker.kv_cache_dtype": "int8", "worker.quantization": "fast"}
)
"""What ``make up`` sets beside the defaults."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")
_FLAG = re.compile(r"--(?:\[no-\])?([a-z][a-z0-9-]+)")


class StackError(Exception):
    """The services did not start; the message is the reason that they gave."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to serve and how."""

    model: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """By ``service.setting``, such as ``worker.kv_cache_dtype``."""
    workers: int = 1

    def command(self, door: str, directory: Path) -> list[str]:
        """The arguments of ``hundredfold serve``."""
        inner = [f"--{name}-listen=unix:{directory / name}.tcp.sock" for name in ("scheduler", "worker")]
        assigned = [f"--set={target}={value}" for target, value in self.settings.items()]
        many = ["--workers", str(self.workers)] if self.workers > 1 else []
        return ["serve", "--model", self.model, "--listen", door, "--no-http", *inner, *many, *assigned]


class RunningStack:
    """Services that are ready."""

    def __init__(self, address: str, process: subprocess.Popen[str], start_s: float) -> None:
        self.address = address
        self.start_s = start_s
        self._process = process

    def cpu_seconds(self) -> float:
        """Processor time of all its processes so far."""
        spent = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    spent += times.user + times.system
        return spent


@contextmanager
def running_stack(options: StackOptions) -> Iterator[RunningStack]:
    """The services, ready, for as long as the block runs. Raises StackError."""
    door = f"127.0.0.1:{_free_port()}"
    with tempfile.TemporaryDirectory(prefix="hundredfold-bench-") as directory:
        arguments = options.command(door, Path(directory))
        tether = ["-m", "hundredfold.supervisor.tether", str(os.getpid()), "hundredfold"]
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *tether, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "COLUMNS": "400"},  # a reason on one line
            start_new_session=True,
        )
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        try:
            _wait_ready(door, process, reader, lines)
            yield RunningStack(door, process, time.monotonic() - begun)
        finally:
            _stop(process)


@cache
def known_settings(service: str) -> frozenset[str]:
    """The settings that a service of this installation has, as its help lists them."""
    done = subprocess.run(
        [sys.executable, "-m", f"hundredfold_{service}", "--help"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    return frozenset(name.replace("-", "_") for name in _FLAG.findall(done.stdout))


def reason(lines: Sequence[str]) -> str:
    """The line of a failed start that says most, out of what `serve` printed last."""
    plain = [_ANSI.sub("", line).strip(" │╭╮╰╯─\n") for line in lines]
    told = [line for line in plain if line]
    for line in reversed(told):
        if re.search(r"(error|refused|cannot|unknown|not |needs|has no)", line, re.IGNORECASE):
            given = re.search(r'\breason=(?:"([^"]*)"|(\S+))', line)
            return (given[1] or given[2]) if given else line
    return told[-1] if told else "the services ended without a word"


def _wait_ready(
    address: str, process: subprocess.Popen[str], reader: threading.Thread, lines: deque[str]
) -> None:
    import grpc  # here, so that a look at the help needs none

    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            reader.join(2.0)
            raise StackError(reason(list(lines)))
        try:
            if probe(address, "readiness") == "SERVING":
                return
        except grpc.RpcError:
            pass  # not there yet
        time.sleep(0.2)
    raise StackError(f"not ready within {READY_LIMIT_S:g} s: {reason(list(lines))}")


def _read(process: subprocess.Popen[str], lines: deque[str]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
            return
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the services die with it, see tether
        process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
