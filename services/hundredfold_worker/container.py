"""What the container or machine allows this process: memory and processors. Without torch."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""The old cgroups write a number near 2**63 where there is no limit."""


def machine_bytes() -> int:
    """Memory of the machine, or the container's limit if less."""
    return min(psutil.virtual_memory().total, container_limit())


def container_limit(root: Path = _CGROUP_ROOT, own: Path = Path("/proc/self/cgroup")) -> int:
    """The least memory limit of the control groups this process is in; very large when there is none."""
    limits = [_NO_LIMIT]
    for group in _groups(own):
        inside = root / group.lstrip("/")
        for directory in (inside, *inside.parents):
            if not directory.is_relative_to(root):
                break
            limits += _limits_in(directory)
    # In a container the group's path is that of the host, but the limit stands at the root.
    limits += _limits_in(root) + _limits_in(root / "memory")
    return min(limits)


def _groups(own: Path) -> list[str]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            found.append(path)
        elif "memory" in controllers.split(","):
            found.append("memory/" + path.lstrip("/"))
    return found


def _limits_in(directory: Path) -> list[int]:
    found = []
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int((directory / name).read_text()))
    return found


def usable_processors() -> int:
    """Processors that this process may use: its affinity, and the container's quota if less."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(count, quota)) if quota is not None else count


def _quota(root: Path = _CGROUP_ROOT) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    with contextlib.suppress(OSError, ValueError):
        old = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if old < 0 else -(-old // int((root / "cpu" / "cpu.cfs_period_us").read_text()))
    return None
