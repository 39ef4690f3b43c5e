"""Waits for what another task or process is about to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], timeout_s: float = 30) -> None:
    """Return once the condition holds. Raises ``TimeoutError``."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the other side has no event to offer
            await asyncio.sleep(0.005)
