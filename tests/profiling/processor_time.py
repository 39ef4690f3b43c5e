"""What a process has taken from the machine so far, by Linux's own account."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Taken:
    """Processor time of all threads, and how often one of them went to sleep and was woken."""

    cpu_s: float
    wakeups: int

    def since(self, before: Taken) -> Taken:
        """What was taken between two moments."""
        return Taken(self.cpu_s - before.cpu_s, self.wakeups - before.wakeups)


def taken(pid: int) -> Taken:
    """Until now. The scheduler's own sums are used where the kernel has them: ticks are 10 ms long."""
    cpu_s, wakeups = 0.0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            cpu_s += _thread_s(task)
            status = (task / "status").read_text()
        except FileNotFoundError:
            continue  # a thread that has just ended
        line = next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))
        wakeups += int(line.split()[1])
    return Taken(cpu_s, wakeups)


def _thread_s(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, IndexError):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S
