"""Checks that the accounts of blocks, slots and requests agree. Cheap sums any time, everything when idle."""

from __future__ import annotations

from collections import Counter

from hundredfold_scheduler.core.ahead import MAX_REPEATS
from hundredfold_scheduler.core.cache import Cache
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.worker import MAX_PLANS_IN_FLIGHT, Worker


class IntegrityError(Exception):
    """Accounts that disagree: a fault of ours. The process has to end; its replicas submit anew to the next
    one.
    """


def check_sums(state: State) -> None:
    """What holds after every step, in O(workers): every block and every slot is somewhere, once. Raises
    ``IntegrityError``.
    """
    for worker in state.workers.values():
        pool = worker.cache.pool
        _expect(
            pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks and pool.num_used >= 0,
            f"{worker.name}: {pool.num_free} free, {pool.num_cached} cached, {pool.num_used} used of "
            f"{pool.num_blocks} blocks",
        )
        slots, running = worker.slots, len(worker.running)
        _expect(
            slots.num_free + running == slots.count,
            f"{worker.name}: {slots.num_free} slots are free, {running} taken, {slots.count} there",
        )


def check_all(state: State) -> None:
    """Count everything anew. O(blocks + requests); for an idle engine and for tests. Raises
    ``IntegrityError``.
    """
    check_sums(state)
    _check_requests(state)
    for name, worker in state.workers.items():
        _expect(name == worker.name, f"{worker.name} is known as {name}")
        _check_placed(worker)
        _check_slots(worker)
        _check_blocks(worker)


def _check_requests(state: State) -> None:
    by_attachment = sum(len(attachment.requests) for attachment in state.attachments.values())
    _expect(
        by_attachment == len(state.requests),
        f"{by_attachment} requests attached, {len(state.requests)} known",
    )
    sequences = [s for request in state.requests.values() for s in request.sequences.values()]
    placed = Counter(sequence.status for sequence in sequences)
    held = sum(s.status is Status.HELD and not s.started for s in sequences)
    _expect(held == state.num_held, f"{held} fresh sequences are held, {state.num_held} are counted")
    found = {
        Status.WAITING: len(state.waiting),
        Status.RUNNING: state.num_running,
        Status.PARKED: state.num_parked,
        Status.DONE: 0,
    }
    for status, count in found.items():
        _expect(placed[status] == count, f"{count} sequences are {status.name}, {placed[status]} say so")
    waiting = state.waiting.items()
    _expect(all(sequence.worker is None for sequence in waiting), "a waiting sequence is on a worker")
    tokens = sum(sequence.total for sequence in waiting)
    _expect(
        tokens == state.waiting.num_tokens, f"{tokens} tokens wait, {state.waiting.num_tokens} are counted"
    )
    fresh = sum(not sequence.started for sequence in waiting)
    _expect(
        fresh == state.waiting.num_fresh, f"{fresh} fresh sequences, {state.waiting.num_fresh} are counted"
    )
    timed = sum(request.deadline is not None for request in state.requests.values())
    _expect(
        timed == len(state.deadlines), f"{timed} requests have a deadline, {len(state.deadlines)} are timed"
    )


def _check_placed(worker: Worker) -> None:
    placed = [
        *((sequence, Status.RUNNING) for sequence in worker.running.values()),
        *((sequence, Status.PARKED) for sequence in worker.parked.values()),
    ]
    for sequence, status in placed:
        _expect(
            sequence.worker is worker and sequence.status is status,
            f"sequence {sequence.number} does not know that it is {status.name} on {worker.name}",
        )


def _check_slots(worker: Worker) -> None:
    slots = [*worker.slots.free_slots(), *(sequence.slot for sequence in worker.running.values())]
    _expect(sorted(slots) == list(range(worker.slots.count)), "a slot is held twice or by nobody")
    named = {id(sequence): record.step for record in worker.in_flight for sequence in record.rows}
    for sequence in worker.running.values():
        last = named.get(id(sequence), sequence.last_step)
        _expect(sequence.last_step == last, f"sequence {sequence.number} does not know of plan {last}")
    for sequence in worker.parked.values():
        _expect(sequence.last_step > worker.applied, f"sequence {sequence.number} waits for no result")


def _check_blocks(worker: Worker) -> None:
    cache = worker.cache
    pool = cache.pool
    held: Counter[int] = Counter()
    for sequence in worker.running.values():
        held.update(sequence.blocks[sequence.unseen :])
        _check_table(sequence, cache, MAX_PLANS_IN_FLIGHT * (worker.limits.max_draft_tokens + MAX_REPEATS))
    for block, references in enumerate(pool.references):
        _expect(
            references == held[block], f"block {block} has {references} references, {held[block]} holders"
        )
    free, cached = pool.free_blocks(), pool.cached_blocks()
    unused = [block for block in range(pool.num_blocks) if not held[block]]
    _expect(sorted(free + cached) == unused, "a block that nobody holds is neither free nor cached, or both")
    _expect(len(cached) == pool.num_cached, f"{len(cached)} blocks are cached, {pool.num_cached} are counted")
    _expect(all(pool.digests[block] is None for block in free), "a free block has a name")
    _expect(all(pool.digests[block] is not None for block in cached), "a cached block has no name")
    named = {block: digest for block, digest in enumerate(pool.digests) if digest is not None}
    _expect(
        {block: digest for digest, block in cache.index.items()} == named, "index and pool disagree on names"
    )
    promised = sum(sequence.promised for sequence in worker.running.values())
    _expect(promised == cache.promised, f"{promised} blocks are promised, {cache.promised} are counted")


def _check_table(sequence: Sequence, cache: Cache, in_doubt: int) -> None:
    """``in_doubt``: tokens that plans may have reserved beyond what their results then confirmed."""
    table, size = sequence.blocks, cache.block_size
    held = table[sequence.unseen :]
    _expect(len(set(held)) == len(held), f"sequence {sequence.number} holds a block twice")
    _expect(sequence.capacity == len(table) * size, f"sequence {sequence.number} miscounts its capacity")
    unused = len(table) * size - sequence.reserved
    _expect(
        0 <= unused < size + in_doubt, f"sequence {sequence.number} holds {unused} slots that nothing needs"
    )


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise IntegrityError(message)
