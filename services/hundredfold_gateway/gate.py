"""Counts what is in progress, and lets nothing in beyond the limit or while the service stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from hundredfold_gateway.errors import overloaded, stopping


class Gate:
    """Belongs to the event loop.

    Args:
        limit: Prompts in progress at once.
        closing: Whether the service stops.
    """

    def __init__(self, limit: int, closing: Callable[[], bool]) -> None:
        self.cut = asyncio.Event()
        """Set when what still runs has to end now."""
        self._limit = limit
        self._closing = closing
        self._prompts = 0
        self._requests = 0

    @property
    def running(self) -> int:
        """HTTP requests in progress."""
        return self._requests

    @contextlib.contextmanager
    def passing(self, prompts: int) -> Iterator[None]:
        """A request in progress for as long as the block runs. Raises ``ApiError``."""
        if self._closing():
            raise stopping()
        if self._prompts + prompts > self._limit:
            raise overloaded(
                f"{self._prompts} prompts are in progress and {prompts} more would be above the limit "
                f"max_requests = {self._limit}"
            )
        self._prompts += prompts
        self._requests += 1
        try:
            yield
        finally:
            self._prompts -= prompts
            self._requests -= 1
