"""Free ports for services under test, out of the range that the system gives to connections by itself.

A port of that range may be taken by anybody's connection between the question and the start of the service.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 12_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def highest_port() -> int:
    """Below the system's own range; of all ports where that range is unknown or leaves no room."""
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0
    return first - 1 if first > LOWEST + 5_000 else 65_535


def free_port() -> int:
    """A port that was free a moment ago. Drawn at random: several test processes draw at the same time."""
    draw = random.SystemRandom()  # not of the seeded generator, which would draw the same in each
    for _ in range(100):
        port = draw.randint(LOWEST, highest_port())
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of 100 ports between {LOWEST} and {highest_port()} is free")
