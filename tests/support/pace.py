"""Bounds in seconds, on a machine that may be busy with something else meanwhile.

A test that passes one ends with ``TooSlow`` and is called again (``tests/conftest.py``): a busy machine is
slow once, a slow program always. Only the bound itself is said this way. What has to happen at all is waited
for with ``eventually``, whose patience is long, and is not tried twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class TooSlow(AssertionError):
    """A bound on time, or on what hangs on it, was passed."""


@contextlib.contextmanager
def at_most(limit_s: float, what: str = "it") -> Iterator[None]:
    """What is inside takes no longer. Raises ``TooSlow``."""
    began = time.monotonic()
    yield
    in_time(time.monotonic() - began, limit_s, what)


def in_time(found: float, limit: float, what: str = "it") -> None:
    """``found`` is at most ``limit``, both in the same unit. Raises ``TooSlow``."""
    if found > limit:
        raise TooSlow(f"{what} took {found:.3g}, allowed are {limit:g}")
