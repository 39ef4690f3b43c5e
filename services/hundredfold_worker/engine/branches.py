"""Checks the branches of a plan: only beams branch, only from all that is computed, into blocks there are."""

from __future__ import annotations

from collections.abc import Sequence

from hundredfold_worker.engine.plan import Branch
from hundredfold_worker.engine.slots import EMPTY, RUNNING, SlotTable
from hundredfold_worker.failures import BrokenPlan


def check_branches(table: SlotTable, branches: Sequence[Branch]) -> None:
    """Say what is wrong with the first that cannot be.

    Raises:
        BrokenPlan: names the slot, the value and the limit.
    """
    taken: set[int] = set()
    for branch in branches:
        for name, slot in (("slot", branch.slot), ("source_slot", branch.source_slot)):
            if not 0 <= slot < table.limits.max_num_seqs:
                raise BrokenPlan(f"branches.{name} is {slot}, max_num_seqs is {table.limits.max_num_seqs}")
        if branch.slot in taken:
            raise BrokenPlan(f"branches names slot {branch.slot} twice")
        taken.add(branch.slot)
        _check_source(table, branch)
        _check_blocks(table, branch)


def _check_source(table: SlotTable, branch: Branch) -> None:
    limits, source = table.limits, branch.source_slot
    for name, slot in (("source_slot", source), ("slot", branch.slot)):
        if name == "slot" and table.state[slot] == EMPTY:
            continue
        if table.state[slot] != RUNNING or table.sampling.num_candidates[slot] == 0 or slot in table.faults:
            raise BrokenPlan(f"branches.{name} is {slot}, which holds no running beam")
    length, computed = int(table.length[source]), int(table.computed[source])
    if computed != length:
        raise BrokenPlan(f"slot {source} branches at {length} tokens, of which {computed} are computed")
    if length >= limits.max_model_len:
        raise BrokenPlan(
            f"slot {source} branches at {length} tokens, max_model_len is {limits.max_model_len}"
        )
    if not 0 <= branch.token_id < limits.vocab_size:
        raise BrokenPlan(f"branches.token_id is {branch.token_id}, the vocabulary has {limits.vocab_size}")


def _check_blocks(table: SlotTable, branch: Branch) -> None:
    limits, source = table.limits, branch.source_slot
    most, ids = int(table.num_blocks[source]), branch.block_ids
    if not 0 <= branch.kept_blocks <= most:
        raise BrokenPlan(f"branches.kept_blocks is {branch.kept_blocks}, slot {source} has {most} blocks")
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < limits.num_blocks):
        raise BrokenPlan(f"branches.block_ids of slot {branch.slot}: num_blocks is {limits.num_blocks}")
    size, computed = branch.kept_blocks + len(ids), int(table.computed[source])
    if size > limits.max_blocks_per_sequence:
        raise BrokenPlan(
            f"branches gives slot {branch.slot} {size} blocks, "
            f"a sequence has at most {limits.max_blocks_per_sequence}"
        )
    if size * limits.block_size < computed:
        raise BrokenPlan(f"branches gives slot {branch.slot} {size} blocks for {computed} computed tokens")
