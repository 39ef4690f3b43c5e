"""Who carries tokens to clients does not interrupt who computes them."""

from __future__ import annotations

import contextlib
import os


def wait_for_turns() -> None:
    """Let the calling thread, and those that it starts from now on, wait for their turn on a busy core.

    A thread that wakes up usually takes the core from one that computes, and all that compute with that one
    wait. Linux lets threads of its batch class run when the other's turn is over, a few milliseconds later at
    most, and at once where a core is idle; by then there is more to do at a time. Does nothing elsewhere, and
    nothing where somebody has chosen a class already.
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
