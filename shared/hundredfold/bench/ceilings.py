"""What this machine could do at best, measured in a process of its own and kept for later looks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from hundredfold.config import cache_dir

PROBE = "hundredfold_worker.bench.machine"
"""The module that measures: it needs torch, so it is the worker's."""
PROBE_LIMIT_S = 120.0


class CeilingsError(Exception):
    """The machine could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Best figures of a machine, all cores together."""

    read_bytes_per_s: float
    operations_per_s: Mapping[str, float] = field(default_factory=dict)
    """By type: fp32, bf16, int8. A multiplication with its addition counts two."""
    threads: int = 1
    instructions: str = ""

    @property
    def best_float(self) -> float:
        """Of the types that are no integers, the fastest."""
        return max((self.operations_per_s.get(name, 0.0) for name in ("fp32", "bf16")), default=0.0)

    def operations(self, arithmetic: str) -> float:
        """The ceiling of ``int8`` or ``float`` arithmetic; 0.0 when it could not be measured."""
        return self.operations_per_s.get("int8", 0.0) if arithmetic == "int8" else self.best_float

    def to_json(self) -> str:
        """One JSON object with this class's fields."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` or the probe wrote. Raises ValueError."""
        try:
            data: dict[str, Any] = json.loads(text)
            rates = {str(name): float(rate) for name, rate in data["operations_per_s"].items()}
            return cls(
                float(data["read_bytes_per_s"]), rates, int(data["threads"]), str(data["instructions"])
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not the figures of a machine: {error}") from error


def measure_ceilings() -> Ceilings:
    """Measure this machine: some seconds with every core at work. Raises CeilingsError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROBE], capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CeilingsError(f"the probe took more than {PROBE_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise CeilingsError(f"the probe failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    try:
        return Ceilings.from_json(done.stdout)
    except ValueError as error:
        raise CeilingsError(str(error)) from error


def ceilings_file() -> Path:
    """Where the figures of this machine are kept."""
    return cache_dir() / "machine.json"


def keep(ceilings: Ceilings, path: Path | None = None) -> None:
    """Keep the figures for ``bench bottleneck``, which must not disturb a running server by measuring."""
    path = path or ceilings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ceilings.to_json(), encoding="utf-8")


def kept(path: Path | None = None) -> Ceilings | None:
    """The figures that an earlier ladder kept, None when there are none that can be read."""
    try:
        return Ceilings.from_json((path or ceilings_file()).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
