"""Whether samples of memory grow: the slope by least squares over the means of minutes, with its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BUCKET_S = 60.0
NOISE_BYTES = 1 << 20
"""Over the whole time: less is an allocator's whim."""
NOISE_SHARE = 0.01
_T95 = (12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for 1 to 10 degrees of freedom; 2.2 beyond."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of one process's resident memory."""

    begin: int
    """Bytes, mean of the first minute that counts."""
    end: int
    """Bytes, mean of the last."""
    highest: int
    slope: float
    """Bytes a minute."""
    bound: float
    """Half the width of the slope's 95 % interval."""
    minutes: float

    @property
    def grows(self) -> bool:
        """Beyond noise: the interval lies above zero, and the growth is more than allocators' whims."""
        least = (self.slope - self.bound) * self.minutes
        return least > 0 and self.slope * self.minutes > max(NOISE_BYTES, NOISE_SHARE * self.begin)

    @property
    def text(self) -> str:
        """A line."""
        return (
            f"{self.begin / 2**20:8.1f} MiB to {self.end / 2**20:8.1f} MiB in {self.minutes:.1f} minutes, "
            f"slope {self.slope / 1024:+.1f} ± {self.bound / 1024:.1f} KiB/min"
        )


def growth(seconds: Sequence[float], held: Sequence[int]) -> Growth:
    """Of at least three buckets of samples. Raises ValueError for fewer."""
    times, values = np.asarray(seconds, float), np.asarray(held, float)
    bucket_s = min(BUCKET_S, (times[-1] - times[0]) / 4)
    buckets = ((times - times[0]) // bucket_s).astype(int)
    numbers = np.unique(buckets)
    if len(numbers) < 3:
        raise ValueError(f"{len(times)} samples over {times[-1] - times[0]:.0f} s are too few for a slope")
    x = np.array([times[buckets == number].mean() for number in numbers]) / 60
    y = np.array([values[buckets == number].mean() for number in numbers])
    slope, intercept = np.polyfit(x, y, 1)
    freedom = len(x) - 2
    error = np.sqrt(((y - slope * x - intercept) ** 2).sum() / freedom / ((x - x.mean()) ** 2).sum())
    t = _T95[freedom - 1] if freedom <= len(_T95) else 2.2
    return Growth(
        int(y[0]), int(y[-1]), int(values.max()), float(slope), float(t * error), float(x[-1] - x[0])
    )
