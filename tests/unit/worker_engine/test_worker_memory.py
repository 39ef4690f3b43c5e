"""Memory: how many blocks fit, what is said when none do, and what a container allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hundredfold.errors import StartError
from hundredfold_worker.container import container_limit
from hundredfold_worker.memory import (
    CacheNeed,
    MemoryBudget,
    held_bytes,
    num_blocks,
    total_bytes,
    watch_peak,
)

MIB = 1 << 20
NEED = CacheNeed(bytes_per_block=MIB, block_size=32, max_model_len=2048, max_num_seqs=8)


def budget(for_cache: int) -> MemoryBudget:
    total = 2 * (for_cache + 30 * MIB)
    return MemoryBudget(total, utilization=0.5, held=20 * MIB, step=10 * MIB, free=1 << 50)


def test_automatic_size_fills_the_budget() -> None:
    assert budget(100 * MIB).for_cache == 100 * MIB
    assert num_blocks(budget(100 * MIB), NEED, None) == 100
    assert num_blocks(budget(64 * MIB), NEED, None) == 64


def test_automatic_size_stops_where_it_is_of_no_use() -> None:
    assert num_blocks(budget(5000 * MIB), NEED, None) == 8 * 64
    capped = CacheNeed(MIB, 32, 2048, 8, most_tokens=4096)
    assert num_blocks(budget(5000 * MIB), capped, None) == 128
    long = CacheNeed(MIB, 32, 8192, 8, most_tokens=4096)
    assert num_blocks(budget(5000 * MIB), long, None) == 256


def test_asked_for_is_given_if_it_fits() -> None:
    assert num_blocks(budget(100 * MIB), NEED, 3) == 3
    assert num_blocks(budget(100 * MIB), NEED, 100) == 100


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, ("max_model_len 2048", "67108864 bytes", "66060288 bytes", "memory_utilization")),
        (64, ("num_kv_blocks 64", "67108864 bytes", "66060288 bytes", "lower num_kv_blocks")),
    ],
)
def test_what_does_not_fit_is_told_with_numbers(asked: int | None, words: tuple[str, ...]) -> None:
    """Report 14: needed, available, and the setting to change."""
    with pytest.raises(StartError) as refused:
        num_blocks(budget(63 * MIB), NEED, asked)
    for word in words:
        assert word in str(refused.value)


def test_what_others_hold_cannot_be_had() -> None:
    """Report 14: another process's memory counts, whatever the share allows."""
    crowded = replace(budget(100 * MIB), free=80 * MIB)
    assert num_blocks(crowded, NEED, None) == 70
    with pytest.raises(StartError, match=r"83886080 bytes \(0.08 GiB\) are free now"):
        num_blocks(crowded, NEED, 71)


def test_nothing_left_at_all() -> None:
    poor = MemoryBudget(total=10 * MIB, utilization=0.5, held=20 * MIB, step=0, free=MIB)
    assert poor.for_cache == 0
    with pytest.raises(StartError, match="available are 0 bytes"):
        num_blocks(poor, NEED, None)


def test_container_limit(tmp_path: Path) -> None:
    """The least limit on the way up; "max" is none; a container sees its own limit at the root."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert container_limit(root, own) > 1 << 50
    (inner / "memory.max").write_text("max\n")
    (root / "a" / "memory.max").write_text("1073741824\n")
    assert container_limit(root, own) == 1 << 30
    (inner / "memory.high").write_text("536870912\n")
    assert container_limit(root, own) == 1 << 29
    own.write_text("0::/../elsewhere\n")
    assert container_limit(root, own) > 1 << 50
    (root / "memory.max").write_text("4096\n")
    assert container_limit(root, own) == 4096
    own.write_text("12:cpu,memory:/docker/x\n")
    old = root / "memory" / "docker" / "x"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("2048\n")
    assert container_limit(root, own) == 2048
    assert container_limit(tmp_path / "none", tmp_path / "none") > 1 << 50


def test_peak_is_seen_after_it_is_over() -> None:
    device = torch.device("cpu")
    with watch_peak(device) as peak:
        torch.ones(64 * MIB, dtype=torch.uint8)
    assert 60 * MIB < peak.extra < 200 * MIB
    with watch_peak(device) as peak:
        pass
    assert peak.extra < 20 * MIB
    assert total_bytes(device) >= held_bytes(device) > 10 * MIB
