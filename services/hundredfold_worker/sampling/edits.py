"""Changes to single logits before the draw: bias, bad words, stop ids under min_tokens, penalties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.sampling.table import SamplingTable

TokensOf = Callable[[int], NDArray[Any]]
"""Known ids of a slot's sequence, prompt and output."""


def apply_edits(
    logits: Tensor,
    rows: NDArray[np.intp],
    slots: NDArray[Any],
    num_outputs: NDArray[Any],
    table: SamplingTable,
    tokens_of: TokensOf,
) -> None:
    """Change ``logits`` float32[R, V] in place at ``rows``, whose slots and output lengths are given.

    Edits touch single elements, one rounding at a time: a row's numbers do not depend on its neighbours.
    """
    _add_bias(logits, rows, slots, table)
    _mask(logits, rows, slots, num_outputs, table, tokens_of)
    _penalize(logits, rows, slots, table)


def _add_bias(logits: Tensor, rows: NDArray[np.intp], slots: NDArray[Any], table: SamplingTable) -> None:
    picked = [(row, edits) for row, edits in _sparse(rows, slots, table) if len(edits.bias_ids)]
    if not picked:
        return
    at = _places(logits, [(row, edits.bias_ids) for row, edits in picked])
    logits[at] += _send(logits, np.concatenate([edits.bias_values for _, edits in picked]))


def _mask(
    logits: Tensor,
    rows: NDArray[np.intp],
    slots: NDArray[Any],
    num_outputs: NDArray[Any],
    table: SamplingTable,
    tokens_of: TokensOf,
) -> None:
    picked: list[tuple[int, NDArray[np.int64]]] = []
    for i, (row, edits) in enumerate(_sparse(rows, slots, table)):
        slot = int(slots[i])
        if edits.bad_words is not None:
            picked.append((row, edits.bad_words.single))
            completions = edits.bad_words.completions(tokens_of(slot))
            picked.append((row, np.array(completions, dtype=np.int64)))
        if num_outputs[i] < table.min_tokens[slot]:
            picked.append((row, edits.stop_ids))
    if any(len(ids) for _, ids in picked):
        logits[_places(logits, picked)] = -torch.inf


def _penalize(logits: Tensor, rows: NDArray[np.intp], slots: NDArray[Any], table: SamplingTable) -> None:
    picked = [
        (row, int(slots[i]), edits.counts)
        for i, (row, edits) in enumerate(_sparse(rows, slots, table))
        if edits.counts is not None and len(edits.counts.token_ids)
    ]
    if not picked:
        return
    at = _places(logits, [(row, counts.token_ids) for row, _, counts in picked])
    lengths = [len(counts.token_ids) for _, _, counts in picked]
    owners = np.repeat([slot for _, slot, _ in picked], lengths)
    times = np.concatenate([counts.counts for _, _, counts in picked])
    repetition = _send(logits, table.repetition[owners])
    frequency = _send(logits, table.frequency[owners] * times)
    presence = _send(logits, table.presence[owners] * (times > 0))
    values = logits[at]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[at] = values - frequency - presence


def _sparse(rows: NDArray[np.intp], slots: NDArray[Any], table: SamplingTable) -> list[tuple[int, Any]]:
    return [(int(row), table.sparse[int(slot)]) for row, slot in zip(rows, slots, strict=True)]


def _places(logits: Tensor, picked: list[tuple[int, NDArray[np.int64]]]) -> tuple[Tensor, Tensor]:
    row_index = np.repeat(
        np.array([row for row, _ in picked], dtype=np.int64), [len(ids) for _, ids in picked]
    )
    return _send(logits, row_index), _send(logits, np.concatenate([ids for _, ids in picked]))


def _send(logits: Tensor, values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(logits.device)
