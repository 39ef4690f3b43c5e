"""Holds the server's speed to ratios that were measured before, on a machine of the same kind.

Ratios between stages of one run, never absolute times: a slow minute slows both sides. A ratio counts as
worse only when it leaves its bound, which says how much the same code has been seen to vary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from hundredfold.supervisor.cores import usable_cores

DEFAULT_BOUND = 0.25
"""How far a ratio may lie from the stored one, as a share of it."""
_CPUINFO = Path("/proc/cpuinfo")
_KINDS = ("avx512_vnni", "avx512f", "avx2")
"""Flags that make a kind of machine, the best one first."""


class CheckError(Exception):
    """The ratios could not be checked; the message says why."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One ratio as it was."""

    value: float
    bound: float = DEFAULT_BOUND

    @property
    def least(self) -> float:
        """Below this it counts as worse."""
        return self.value * (1 - self.bound)

    @property
    def most(self) -> float:
        """Above this it is time to store a new one."""
        return self.value * (1 + self.bound)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One ratio as it is, beside what was stored."""

    name: str
    measured: float
    stored: Stored | None

    @property
    def status(self) -> Literal["ok", "worse", "better", "new"]:
        """Within its bound, below it, above it, or with nothing to compare with."""
        if self.stored is None:
            return "new"
        if self.measured < self.stored.least:
            return "worse"
        return "better" if self.measured > self.stored.most else "ok"


def ratios(rounds: Iterable[Mapping[str, float]], pairs: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    """Medians over the rounds of each pair's ratio: speeds by name in, ratios by name out.

    Raises CheckError for a pair that no round measured.
    """
    known = list(rounds)
    found = {}
    for name, (above, below) in pairs.items():
        values = [
            speeds[above] / speeds[below] for speeds in known if speeds.get(above) and speeds.get(below)
        ]
        if not values:
            raise CheckError(f"{name}: no round measured both sides")
        found[name] = median(values)
    return found


def judge(measured: Mapping[str, float], stored: Mapping[str, Stored]) -> list[Verdict]:
    """A verdict on each ratio, in the order of the measured ones."""
    return [Verdict(name, value, stored.get(name)) for name, value in measured.items()]


def kind_of_machine(cpuinfo: Path = _CPUINFO) -> str:
    """What ratios depend on: the vector instructions and the number of cores."""
    try:
        words = set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        words = set()
    return f"{next((flag for flag in _KINDS if flag in words), 'portable')}, {usable_cores()} cores"


def read(path: Path, kind: str) -> dict[str, Stored]:
    """The ratios of a kind of machine; none when there are none. Raises CheckError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return {name: Stored(**entry) for name, entry in data.get(kind, {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckError(f"{path} holds no ratios: {error}") from error


def write(path: Path, kind: str, verdicts: Sequence[Verdict]) -> None:
    """Store the measured ratios of this kind beside those of the others; bounds stay. Raises CheckError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        data[kind] = {
            verdict.name: asdict(
                Stored(round(verdict.measured, 3), verdict.stored.bound if verdict.stored else DEFAULT_BOUND)
            )
            for verdict in verdicts
        }
        path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except (OSError, ValueError, TypeError) as error:
        raise CheckError(f"{path}: {error}") from error
