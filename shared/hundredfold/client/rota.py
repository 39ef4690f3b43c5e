"""Whose turn it is among several servers: each in turn, those that were just found away later."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

REST_S = 5.0
"""How long a server that did not answer is passed over while another one is there."""

Server = TypeVar("Server")


class Rota(Generic[Server]):
    """Chooses a server for each call; any thread may ask.

    Args:
        servers: At least one.
        clock: Seconds, rising.
    """

    def __init__(self, servers: Sequence[Server], clock: Callable[[], float] = time.monotonic) -> None:
        self.servers = tuple(servers)
        self._clock = clock
        self._turns = itertools.count()
        self._rests_until = [0.0] * len(self.servers)

    def pick(self) -> Server:
        """The next one that is not known to be away; when all are, the one that rests longest already."""
        count = len(self.servers)
        first, now = next(self._turns), self._clock()
        order = [(first + step) % count for step in range(count)]
        awake = (index for index in order if self._rests_until[index] <= now)
        return self.servers[next(awake, min(order, key=self._rests_until.__getitem__))]

    def expect_one(self, call: str) -> None:
        """Raises ``ValueError`` where several servers could be meant by a call that is about one."""
        if len(self.servers) > 1:
            raise ValueError(
                f"{call} is about one server and this client has {len(self.servers)}: make a client of one"
            )

    def away(self, server: Server) -> None:
        """The server did not answer."""
        self._rests_until[self.servers.index(server)] = self._clock() + REST_S


def addresses(address: str) -> tuple[str, ...]:
    """The servers that a comma-separated list names.

    Raises:
        ValueError: It names none.
    """
    named = tuple(dict.fromkeys(part for part in map(str.strip, address.split(",")) if part))
    if not named:
        raise ValueError(f"address {address!r} names no server")
    return named
