"""What a machine has, read without torch: memory, the types that it multiplies, its measured rates."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hundredfold.bench.ceilings import kept
from hundredfold_worker.container import machine_bytes, usable_processors

_MIB = 1 << 20
_BASE = {"cpu": 260 * _MIB, "cuda": 600 * _MIB}
"""What the process holds beside the weights: libraries, and a GPU's context."""
_UTILIZATION = {"cpu": 0.5, "cuda": 0.9}
_BF16_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16", "svebf16"))


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a model is to run."""

    device: str
    """``cpu`` or ``cuda``."""
    dtype: str
    """``fp32``, ``bf16`` or ``fp16``: what it computes in."""
    total: int
    """Bytes of the device's memory."""
    utilization: float
    read_bytes_per_s: float | None = None
    """``None`` when nobody measured or stated it."""
    operations_per_s: Mapping[str, float] = field(default_factory=dict)
    """By ``int8`` and ``float``."""
    measured: str = ""
    """Where the rates come from."""

    @property
    def base(self) -> int:
        """Bytes that the process holds beside weights, cache and a step."""
        return _BASE[self.device]

    @property
    def budget(self) -> int:
        """Bytes that the worker may hold in total."""
        return int(self.total * self.utilization)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command was told about the machine; ``None`` for nothing."""

    device: str = "auto"
    dtype: str = "auto"
    total: int | None = None
    utilization: float | None = None
    bandwidth: float | None = None
    operations: float | None = None


def machine(wish: Wish) -> Machine:
    """This machine, as far as nothing else was said."""
    gpu = _gpu_bytes() if wish.device in ("auto", "cuda") and wish.total is None else None
    device = wish.device if wish.device != "auto" else ("cuda" if gpu else "cpu")
    rates, source = _rates(wish, device)
    total = wish.total or gpu or machine_bytes()
    return Machine(
        device=device,
        dtype=_dtype(device) if wish.dtype == "auto" else wish.dtype,
        total=total,
        utilization=_UTILIZATION[device] if wish.utilization is None else wish.utilization,
        read_bytes_per_s=rates.pop("read", None),
        operations_per_s=rates,
        measured=source,
    )


def _dtype(device: str) -> str:
    return "bf16" if device == "cuda" or _multiplies_bf16() else "fp32"


def _multiplies_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(_BF16_FLAGS & set(flags.split()))


def _gpu_bytes() -> int | None:
    """Memory of the first GPU, as its driver's own tool says."""
    if not Path("/dev/nvidiactl").exists():
        return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
        return int(done.stdout.splitlines()[0]) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _rates(wish: Wish, device: str) -> tuple[dict[str, float], str]:
    """Read bandwidth and operations, measured before on this CPU or stated."""
    rates: dict[str, float] = {}
    source = ""
    ceilings = kept() if device == "cpu" else None
    if ceilings is not None:
        rates = {
            "read": ceilings.read_bytes_per_s,
            "float": ceilings.best_float,
            "int8": ceilings.operations("int8"),
        }
        source = f"measured here before, {ceilings.threads} threads, {ceilings.instructions}"
    if wish.bandwidth is not None:
        rates["read"] = wish.bandwidth
        source = f"bandwidth as stated{', operations ' + source if source else ''}"
    if wish.operations is not None:
        rates["float"] = rates["int8"] = wish.operations
        source = "as stated" if wish.bandwidth is not None else f"operations as stated, bandwidth {source}"
    return rates, source


def threads() -> int:
    """Processors that a worker would use."""
    return usable_processors()
