"""How long OpenMP's threads spin at a barrier before they sleep. Has to be said before torch is imported."""

from __future__ import annotations

import os

_SPINS = "5000"
"""About a tenth of a millisecond: longer than the gaps between the kernels of a step."""


def calm_openmp() -> None:
    """Let waiting threads sleep after a tenth of a millisecond, unless the environment says otherwise.

    By default they spin for several. The other services run on the same processors, and a thread that spins
    keeps the one that it waits for from running: on two processors under a load of eight, a step's worth of
    small products took 8 s by default, 2.5 s so, and 1.5 s without spinning.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
