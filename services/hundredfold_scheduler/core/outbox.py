"""What one tokenizer replica has yet to be told: merged per request, bounded, drained by its writer."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hundredfold_scheduler.core.failures import Failure
from hundredfold_scheduler.core.step import EndReason, Scores

_ROW_BYTES = 16
_TOKEN_BYTES = 4
_NOTICE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Account:
    """What one choice took; times in microseconds."""

    cached_tokens: int
    queue_us: int
    prefill_us: int
    decode_us: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """How a choice ended."""

    stream_id: int
    index: int
    reason: EndReason
    stop_token_id: int | None
    account: Account
    beam_score: float | None = None
    """By which a beam search ranked it."""


@dataclass(slots=True)
class OutputBatch:
    """One message to a replica. Row ``i`` belongs to choice ``indexes[i]`` of ``stream_ids[i]`` and has the
    next ``counts[i]`` ids; a choice has at most one row.
    """

    stream_ids: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: list[tuple[int, int, Scores]] = field(default_factory=list)
    """Stream id, choice and scores."""
    finished: list[FinishedChoice] = field(default_factory=list)
    failed: list[tuple[int, Failure]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.stream_ids or self.finished or self.failed or self.scores)


class Outbox:
    """Each worker's newest step lies flat, as it will be sent. Only when the writer is behind are older steps
    folded into one row per choice, so that the usual case costs five appends per choice and step.
    """

    def __init__(self) -> None:
        self.fresh = OutputBatch()
        """Where the rows of the step being applied are appended, one per choice at most."""
        self._sources: set[str] = set()
        """Workers whose steps lie in ``fresh``."""
        self._rows: dict[int, dict[int, tuple[int, array[int]]]] = {}
        """Stream id and choice to offset and ids."""
        self._folded_bytes = 0
        self._extra_bytes = 0
        """Of scores and notices."""

    @property
    def nbytes(self) -> int:
        """About what waits to be sent."""
        fresh = self.fresh
        return (
            self._folded_bytes
            + self._extra_bytes
            + _ROW_BYTES * len(fresh.stream_ids)
            + _TOKEN_BYTES * len(fresh.token_ids)
        )

    def __bool__(self) -> bool:
        return bool(self.fresh) or bool(self._rows)

    def begin_step(self, worker: str) -> None:
        """The rows added from here on belong to a new step of this worker. Rows of others' steps are of other
        choices.
        """
        if not self.fresh.stream_ids:
            self._sources.clear()
        elif worker in self._sources:
            self.fold()
        self._sources.add(worker)

    def add_tokens(self, stream_id: int, index: int, ids: array[int]) -> None:
        """All ids of a choice at once."""
        fresh = self.fresh
        fresh.stream_ids.append(stream_id)
        fresh.indexes.append(index)
        fresh.offsets.append(0)
        fresh.counts.append(len(ids))
        fresh.token_ids.extend(ids)

    def add_scores(self, stream_id: int, index: int, scores: Scores) -> None:
        """Scores of a choice whose request asked."""
        self.fresh.scores.append((stream_id, index, scores))
        self._extra_bytes += scores.nbytes

    def add_finished(self, finished: FinishedChoice) -> None:
        """The end of a choice."""
        self.fresh.finished.append(finished)
        self._extra_bytes += _NOTICE_BYTES

    def add_failed(self, stream_id: int, failure: Failure) -> None:
        """The end of a request that failed or was refused."""
        self.fresh.failed.append((stream_id, failure))
        self._extra_bytes += _NOTICE_BYTES + len(failure.message)

    def drain(self) -> OutputBatch:
        """Take all that waits."""
        if self._rows:
            self.fold()
            batch = self.fresh
            for stream_id, choices in self._rows.items():
                for index, (offset, ids) in choices.items():
                    batch.stream_ids.append(stream_id)
                    batch.indexes.append(index)
                    batch.offsets.append(offset)
                    batch.counts.append(len(ids))
                    batch.token_ids.extend(ids)
            self._rows = {}
            self._folded_bytes = 0
        batch, self.fresh = self.fresh, OutputBatch()
        self._extra_bytes = 0
        return batch

    def fail(self, stream_id: int, failure: Failure) -> None:
        """Drop what waits for a request, its end included, and tell that it failed: an end without the ids
        before it would read as a success.
        """
        self.forget(stream_id)
        fresh = self.fresh
        if fresh.finished:
            fresh.finished = [ended for ended in fresh.finished if ended.stream_id != stream_id]
            self._recount_extra()
        self.add_failed(stream_id, failure)

    def forget(self, stream_id: int) -> None:
        """Drop the ids and scores that wait for a request whose client has gone."""
        if not self:
            return
        self.fold()
        for _, ids in self._rows.pop(stream_id, {}).values():
            self._folded_bytes -= _ROW_BYTES + _TOKEN_BYTES * len(ids)
        fresh = self.fresh
        if fresh.scores:
            fresh.scores = [scored for scored in fresh.scores if scored[0] != stream_id]
            self._recount_extra()

    def truncate(self, stream_id: int, index: int, length: int) -> None:
        """Drop a choice's ids at output position ``length`` and after."""
        self.fold()
        choices = self._rows.get(stream_id, {})
        row = choices.get(index)
        if row is None:
            return
        offset, ids = row
        keep = max(0, length - offset)
        if keep >= len(ids):
            return
        self._folded_bytes -= _TOKEN_BYTES * (len(ids) - keep)
        del ids[keep:]
        if not ids:
            del choices[index]
            self._folded_bytes -= _ROW_BYTES
        if not choices:
            del self._rows[stream_id]

    def largest(self) -> int | None:
        """The stream id with most bytes unread, or ``None`` when no request has any."""
        self.fold()
        sizes = {
            stream_id: sum(_TOKEN_BYTES * len(ids) for _, ids in choices.values())
            for stream_id, choices in self._rows.items()
        }
        for stream_id, _, scores in self.fresh.scores:
            sizes[stream_id] = sizes.get(stream_id, 0) + scores.nbytes
        return max(sizes, key=sizes.__getitem__) if sizes else None

    def fold(self) -> None:
        """Merge what lies flat into a row per choice: what is added from here on may be of any of them."""
        fresh = self.fresh
        if not fresh.stream_ids:
            return
        rows = self._rows
        start = 0
        for stream_id, index, offset, count in zip(
            fresh.stream_ids, fresh.indexes, fresh.offsets, fresh.counts, strict=True
        ):
            ids = fresh.token_ids[start : start + count]
            start += count
            choices = rows.setdefault(stream_id, {})
            row = choices.get(index)
            if row is None:
                choices[index] = (offset, array("I", ids))
                self._folded_bytes += _ROW_BYTES
            else:
                row[1].extend(ids)
        self._folded_bytes += _TOKEN_BYTES * len(fresh.token_ids)
        fresh.stream_ids, fresh.indexes, fresh.offsets, fresh.counts = [], [], [], []
        fresh.token_ids = []
        self._sources.clear()

    def _recount_extra(self) -> None:
        fresh = self.fresh
        self._extra_bytes = (
            sum(scores.nbytes for _, _, scores in fresh.scores)
            + _NOTICE_BYTES * (len(fresh.finished) + len(fresh.failed))
            + sum(len(failure.message) for _, failure in fresh.failed)
        )
