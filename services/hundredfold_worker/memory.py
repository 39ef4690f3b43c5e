"""How much memory there is, how much the process holds, and how many cache blocks fit into the rest."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from hundredfold.errors import StartError
from hundredfold_worker.container import machine_bytes

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory of the worker, in bytes."""

    total: int
    """Of the device, or of the container or machine."""
    utilization: float
    """Share of it that the worker may hold."""
    held: int
    """Held already: weights, libraries, and on a GPU whatever other processes hold."""
    step: int
    """What the largest step takes on top."""
    free: int
    """What the system has to give at this moment."""

    @property
    def for_cache(self) -> int:
        """What is left for the cache: of the worker's share, and of what other processes left."""
        return max(0, min(int(self.total * self.utilization) - self.held, self.free) - self.step)


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What the cache has to hold."""

    bytes_per_block: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    most_tokens: int | None = None
    """Tokens beyond which the automatic size does not grow, unless one sequence needs them."""

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)

    @property
    def most_blocks(self) -> int:
        """Blocks beyond which the automatic size does not grow."""
        every_seat = self.max_num_seqs * self.blocks_per_sequence
        if self.most_tokens is None:
            return every_seat
        return min(every_seat, max(self.blocks_per_sequence, self.most_tokens // self.block_size))


def num_blocks(budget: MemoryBudget, need: CacheNeed, asked: int | None) -> int:
    """Blocks of the cache: ``asked``, or what fits, but no more than can be of use.

    Raises:
        StartError: what was asked for, or one longest sequence, does not fit; it names needed and available
            bytes and the settings to change.
    """
    least = need.blocks_per_sequence
    fitting = budget.for_cache // need.bytes_per_block
    wanted = least if asked is None else asked
    if wanted <= fitting:
        return min(fitting, need.most_blocks) if asked is None else asked
    raise StartError(_refusal(budget, need, wanted, asked))


def _refusal(budget: MemoryBudget, need: CacheNeed, wanted: int, asked: int | None) -> str:
    what, smaller = f"num_kv_blocks {asked}", "num_kv_blocks"
    if asked is None:
        what, smaller = f"one sequence of max_model_len {need.max_model_len}", "max_model_len"
    return (
        f"the cache does not fit: {what} needs {_size(wanted * need.bytes_per_block)} "
        f"({wanted} blocks of {need.bytes_per_block} bytes), available are {_size(budget.for_cache)}: "
        f"memory_utilization {budget.utilization:g} of {_size(budget.total)}, less {_size(budget.held)} held "
        f"and {_size(budget.step)} for a step; {_size(budget.free)} are free now. "
        f"Raise memory_utilization, or lower {smaller}, max_num_batched_tokens or max_num_seqs"
    )


def total_bytes(device: torch.device) -> int:
    """Memory of the device; on a CPU that of the machine, or the container's limit if less."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return machine_bytes()


def held_bytes(device: torch.device) -> int:
    """What is held now: the process's resident memory, or all that is taken of the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)
    return int(psutil.Process().memory_info().rss)


def free_bytes(device: torch.device) -> int:
    """What could be taken now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


@dataclass(slots=True)
class Peak:
    """Set when its ``with`` block is over."""

    extra: int = 0
    """Bytes that were held at most during the block, beyond those held at its start."""


@contextlib.contextmanager
def watch_peak(device: torch.device) -> Iterator[Peak]:
    """Measure how much more memory a block of code needs at its height than before it."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.extra = int(torch.cuda.max_memory_allocated(device) - before)
        return
    _reset_high_water()
    before = int(psutil.Process().memory_info().rss)
    yield peak
    peak.extra = max(0, _high_water() - before)


def _reset_high_water() -> None:
    """Where the kernel does not allow it, the peak of loading counts too: the cache gets smaller."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as control:
        control.write("5")


def _high_water() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _size(count: int) -> str:
    """Bytes, and the same for people."""
    return f"{count} bytes ({count / _GIB:.2f} GiB)"
