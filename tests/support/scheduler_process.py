"""The scheduler as a process of its own, with flags, a log and signals."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc
import grpc.aio

from support.eventually import eventually
from support.nursery import nursery
from support.ports import free_port
from support.replica import Replica


class SchedulerProcess:
    """One process on a free port. Whoever starts it kills it."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.log = log
        self.child = nursery("hundredfold_scheduler").start(["--listen", self.address, *flags], log)

    def stop(self) -> None:
        """Ask it to end."""
        self.child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would; nothing happens when it has ended."""
        self.child.kill()
        self.child.wait()

    async def wait(self, timeout_s: float = 30) -> int:
        """Its exit code, once it has ended."""
        await eventually(lambda: self.child.poll() is not None, timeout_s)
        return int(self.child.returncode)

    async def attach(self) -> Replica:
        """A replica, as soon as the process listens."""
        for _ in range(200):
            try:
                return await Replica.attach(self.address)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
        raise TimeoutError(self.log.read_text())
