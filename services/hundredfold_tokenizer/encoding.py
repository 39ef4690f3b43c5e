"""Encodes prompts beside the event loop: short ones at once, long ones on a few threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc

from hundredfold.rpc import RequestError

T = TypeVar("T")

INLINE_BYTES = 1024
"""Texts up to here take less time than a change of threads is worth, about half a millisecond."""

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Texts that may wait for a thread, together."""


class EncodePool:
    """Runs work on texts. ``close`` when done."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T], size: int) -> T:
        """What ``work`` returns; ``size`` is that of its text in bytes.

        Raises:
            RequestError: RESOURCE_EXHAUSTED when too much text waits already.
        """
        if size <= INLINE_BYTES:
            return work()
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._waiting_bytes} bytes of prompts wait already; the limit is {MAX_WAITING_BYTES}",
                retry_after_s=1.0,
            )
        self._count(size)
        future = self._executor.submit(work)
        # Counted until the thread is done with it, also when the caller goes away meanwhile.
        future.add_done_callback(lambda _: self._count(-size))
        return await asyncio.wrap_future(future)

    def _count(self, size: int) -> None:
        with self._lock:
            self._waiting_bytes += size

    def close(self) -> None:
        """Start nothing more; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
