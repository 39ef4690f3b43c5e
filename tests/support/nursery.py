"""Services as processes without the wait for their imports: forks of one that has imported them already.

To import torch takes a worker three of the four seconds that it needs to start over a tiny model, and a run
starts a hundred of them. Here one process for each service imports what the service imports, once, and forks:
the child has arguments, environment, log, signals and an end of its own, as ``python -m SERVICE`` has. That
command itself is run by the tests of each service's process and of ``hundredfold serve``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hundredfold.supervisor.tether import tie_to

POLL_S = 0.02


class Nursling:
    """A child of a nursery, to be used as a ``subprocess.Popen``."""

    def __init__(self, nursery: Nursery, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._nursery = nursery
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code once it has ended, negative for a signal."""
        with self._reaping:  # a thread may wait while another looks, and a child can be reaped once
            if self.returncode is None:
                self.returncode = self._nursery.ask(reap=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises ``subprocess.TimeoutExpired``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """One service's process that forks. It ends with this one, and all of its children with it."""

    def __init__(self, module: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "it would end with the thread that started it: start a service before, outside"
            )
        self._lock = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "support.nursery", str(os.getpid()), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        self._module = module

    def start(self, arguments: Sequence[str], log: Path | str) -> Nursling:
        """A new process of the service; what it prints is added to ``log``."""
        told = {"argv": [self._module, *arguments], "log": str(log), "cwd": os.getcwd()}
        return Nursling(self, self.ask(**told, environment=dict(os.environ)), told["argv"])

    def ask(self, **order: Any) -> Any:
        """One order, one answer."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with self._lock:
            self._server.stdin.write(json.dumps(order) + "\n")
            self._server.stdin.flush()
            answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the nursery of {self._module} has ended with {self._server.wait()}")
        return json.loads(answer)


@cache
def nursery(module: str) -> Nursery:
    """The one of a service, started when it is first needed."""
    return Nursery(module)


def main() -> None:
    """Import the service, then fork whenever told to; returns, in a child alone, as the service's end."""
    parent, module = sys.argv[1:]
    tie_to(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the children, and this one ends after them
    load(module)
    order = serve()
    if order is not None:
        become(module, order)


def load(module: str) -> None:
    """What the service imports before it does anything, in its order. Starts no thread: a fork has one."""
    importlib.import_module(f"{module}.app")
    if importlib.util.find_spec(f"{module}.process"):  # a worker prepares OpenMP, then imports torch
        importlib.import_module(f"{module}.openmp").calm_openmp()
        importlib.import_module(f"{module}.process")
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        sys.exit(f"importing {module} has started {threads - 1} threads, which no fork would have")
    gc.collect()
    gc.freeze()


def serve() -> dict[str, Any] | None:
    """Obey until the other side closes; in a child the order that it is to carry out."""
    for line in sys.stdin:
        order = json.loads(line)
        if pid := order.get("reap"):
            done, status = os.waitpid(pid, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if done else None
        else:
            here = os.getpid()
            answer = os.fork()
            if not answer:
                tie_to(here)
                return order
        print(json.dumps(answer), flush=True)
    return None


def become(module: str, order: dict[str, Any]) -> None:
    """What ``python -m`` does, in this process."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(order["log"], "ab", buffering=0) as log, open(os.devnull, "rb") as nothing:
        for theirs, ours in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(theirs.fileno(), ours)
    sys.argv = order["argv"]
    with contextlib.suppress(KeyError):
        del sys.modules[f"{module}.__main__"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
