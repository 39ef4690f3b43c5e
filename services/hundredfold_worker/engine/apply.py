"""Applying a plan to the slots, every claim of it checked first: a broken plan never reaches memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hundredfold_worker.engine.branches import check_branches
from hundredfold_worker.engine.plan import Ints, NewSequence, StepPlan
from hundredfold_worker.engine.slots import EMPTY, RUNNING, EngineLimits, SlotTable
from hundredfold_worker.failures import BrokenPlan, FailureCode, RequestFailure
from hundredfold_worker.sampling.params import find_fault


def apply_plan(table: SlotTable, plan: StepPlan) -> None:
    """Release, take and grow slots as the plan says, then check its copies and rows.

    Raises:
        BrokenPlan: names the field, the value and the limit. The table is then only good for ``clear``.
    """
    limits = table.limits
    _release(table, plan.released_slots)
    for new in plan.new_sequences:
        _start(table, new)
    if plan.branches:
        check_branches(table, plan.branches)
        table.branch(plan.branches)
    _grow(table, plan)
    _check_equal("copies", len(plan.copy_sources), "destinations", len(plan.copy_destinations))
    _check_range("copies.source", plan.copy_sources, limits.num_blocks, "num_blocks")
    _check_range("copies.destination", plan.copy_destinations, limits.num_blocks, "num_blocks")
    _check_rows(table, plan)


def _release(table: SlotTable, slots: Ints) -> None:
    _check_range("released_slots", slots, table.limits.max_num_seqs, "max_num_seqs")
    for slot in slots.tolist():
        if table.state[slot] == EMPTY:
            raise BrokenPlan(f"released_slots names slot {slot}, which holds no sequence")
        table.release(slot)


def _start(table: SlotTable, new: NewSequence) -> None:
    limits = table.limits
    if not 0 <= new.slot < limits.max_num_seqs:
        raise BrokenPlan(f"new_sequences names slot {new.slot}, max_num_seqs is {limits.max_num_seqs}")
    if table.state[new.slot] != EMPTY:
        raise BrokenPlan(f"new_sequences names slot {new.slot}, which holds a sequence")
    if len(new.block_ids) > limits.max_blocks_per_sequence:
        raise BrokenPlan(
            f"new_sequences gives slot {new.slot} {len(new.block_ids)} blocks, "
            f"a sequence has at most {limits.max_blocks_per_sequence}"
        )
    _check_range("new_sequences.block_ids", new.block_ids, limits.num_blocks, "num_blocks")
    fault = _find_fault(new, limits)
    total = len(new.prompt) + len(new.output)
    if fault is None and not 0 <= new.num_computed < total:
        raise BrokenPlan(
            f"num_computed_tokens of slot {new.slot} is {new.num_computed}, "
            f"it has to be below its {total} tokens"
        )
    if new.num_computed > len(new.block_ids) * limits.block_size:
        raise BrokenPlan(
            f"num_computed_tokens of slot {new.slot} is {new.num_computed}, "
            f"its {len(new.block_ids)} blocks hold {len(new.block_ids) * limits.block_size}"
        )
    table.put(new, fault)


def _find_fault(new: NewSequence, limits: EngineLimits) -> RequestFailure | None:
    """What a caller asked for and cannot have; it ends this sequence alone."""

    def invalid(field: str, message: str) -> RequestFailure:
        return RequestFailure(FailureCode.INVALID_ARGUMENT, f"{field} {message}", field)

    total = len(new.prompt) + len(new.output)
    if len(new.prompt) == 0:
        return invalid("prompt_token_ids", "is empty")
    if total > limits.max_model_len:
        return invalid(
            "prompt_token_ids", f"and output are {total} ids, max_model_len is {limits.max_model_len}"
        )
    for field, ids in (("prompt_token_ids", new.prompt), ("output_token_ids", new.output)):
        if len(ids) and int(ids.max()) >= limits.vocab_size:
            return invalid(field, f"has id {int(ids.max())}, the vocabulary has {limits.vocab_size}")
    return find_fault(new.params, limits.vocab_size)


def _grow(table: SlotTable, plan: StepPlan) -> None:
    limits = table.limits
    slots, counts, block_ids = plan.grown_slots, plan.grown_counts, plan.grown_block_ids
    _check_equal("grown_slots", len(slots), "grown_counts", len(counts))
    if int(counts.sum()) != len(block_ids):
        raise BrokenPlan(f"grown_counts add up to {int(counts.sum())}, grown_block_ids has {len(block_ids)}")
    if not len(slots):
        return
    _check_range("grown_slots", slots, limits.max_num_seqs, "max_num_seqs")
    _check_distinct("grown_slots", slots)
    _check_range("grown_block_ids", block_ids, limits.num_blocks, "num_blocks")
    _check_known("grown_slots", table, slots)
    sizes = table.num_blocks[slots] + counts
    if int(sizes.max()) > limits.max_blocks_per_sequence:
        slot = int(slots[sizes.argmax()])
        raise BrokenPlan(
            f"grown_counts gives slot {slot} {int(sizes.max())} blocks, "
            f"a sequence has at most {limits.max_blocks_per_sequence}"
        )
    starts = np.cumsum(counts) - counts
    offsets = np.arange(len(block_ids)) - np.repeat(starts, counts)
    table.blocks[np.repeat(slots, counts), np.repeat(table.num_blocks[slots], counts) + offsets] = block_ids
    table.num_blocks[slots] = sizes


def _check_rows(table: SlotTable, plan: StepPlan) -> None:
    limits, slots, wanted = table.limits, plan.slots, plan.num_tokens
    _check_equal("slots", len(slots), "num_tokens", len(wanted))
    if len(plan.num_draft_tokens) not in (0, len(slots)):
        raise BrokenPlan(
            f"num_draft_tokens has {len(plan.num_draft_tokens)} values, "
            f"it needs one for each of {len(slots)} rows"
        )
    if not len(slots):
        return
    _check_range("slots", slots, limits.max_num_seqs, "max_num_seqs")
    _check_distinct("slots", slots)
    _check_known("slots", table, slots)
    _check_range(
        "num_draft_tokens", plan.num_draft_tokens, limits.max_draft_tokens + 1, "max_draft_tokens + 1"
    )
    if int(wanted.min()) < 1:
        raise BrokenPlan(f"num_tokens is {int(wanted.min())} for a row, it has to be at least 1")
    takes = np.minimum(wanted, table.length[slots] - table.computed[slots])
    at_once = takes if plan.num_repeats else wanted
    asked = int(at_once.sum()) + int(plan.num_draft_tokens.sum())
    if asked > limits.max_num_batched_tokens:
        raise BrokenPlan(
            f"num_tokens and num_draft_tokens add up to {asked}, "
            f"max_num_batched_tokens is {limits.max_num_batched_tokens}"
        )
    if table.sampling.num_candidates[slots].any():
        _check_beams(table, plan)
    reach = table.computed[slots] + (wanted if plan.num_repeats else takes)
    if len(plan.num_draft_tokens):
        reach = reach + plan.num_draft_tokens
    short = (table.state[slots] == RUNNING) & (reach > table.num_blocks[slots] * limits.block_size)
    if short.any():
        row = int(short.argmax())
        raise BrokenPlan(
            f"row {row} reaches token {int(reach[row])} of slot {int(slots[row])}, whose "
            f"{int(table.num_blocks[slots[row]])} blocks hold "
            f"{int(table.num_blocks[slots[row]]) * limits.block_size}"
        )


def _check_beams(table: SlotTable, plan: StepPlan) -> None:
    slots = plan.slots
    candidates = table.sampling.num_candidates[slots]
    idle = (table.state[slots] == RUNNING) & (table.computed[slots] == table.length[slots]) & (candidates > 0)
    if idle.any():
        raise BrokenPlan(f"row {int(idle.argmax())} names a beam whose tokens are all computed")
    if plan.num_repeats and candidates.any():
        raise BrokenPlan(
            f"num_repeats is {plan.num_repeats}, row {int(candidates.argmax())} is a beam, whose next ids "
            "are the scheduler's to choose"
        )
    beams = plan.num_draft_tokens * candidates[: len(plan.num_draft_tokens)]
    if beams.any():
        raise BrokenPlan(
            f"row {int(beams.argmax())} may draft for a beam, whose next ids are the scheduler's to choose"
        )


def _check_known(field: str, table: SlotTable, slots: Ints) -> None:
    empty = table.state[slots] == EMPTY
    if empty.any():
        raise BrokenPlan(f"{field} names slot {int(slots[empty.argmax()])}, which holds no sequence")


def _check_distinct(field: str, slots: Ints) -> None:
    if len(slots) < 2:
        return
    ordered = np.sort(slots)
    twice = ordered[1:] == ordered[:-1]
    if twice.any():
        raise BrokenPlan(f"{field} names slot {int(ordered[twice.argmax()])} twice")


def _check_range(field: str, values: NDArray[Any], limit: int, limit_name: str) -> None:
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < limit):
        bad = int(values.max()) if int(values.max()) >= limit else int(values.min())
        raise BrokenPlan(f"{field} has {bad}, {limit_name} is {limit}")


def _check_equal(field: str, size: int, other: str, other_size: int) -> None:
    if size != other_size:
        raise BrokenPlan(f"{field} has {size} values, {other} has {other_size}")
