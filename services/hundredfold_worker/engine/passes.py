"""Passes: a step is one forward, unless scoring prompts asks for more logits than there is memory for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold_worker.engine.plan import Ints
from hundredfold_worker.engine.slots import RUNNING, SlotTable


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows that are computed together."""

    rows: Ints
    """int64[n], rows of the plan."""
    slots: Ints
    takes: Ints
    """int64[n], known tokens that each row computes, at least 1."""
    drafts: Ints
    """int64[n], draft tokens that each row tries behind its last known one, where they lie in the table."""

    def chosen(self, which: Any) -> Pass:
        """Some of the rows, by a slice or a mask."""
        return Pass(self.rows[which], self.slots[which], self.takes[which], self.drafts[which])

    def living(self, table: SlotTable) -> Pass:
        """The rows whose sequence still goes on."""
        alive = table.state[self.slots] == RUNNING
        return self if alive.all() else self.chosen(alive)


def num_scored(table: SlotTable, slots: Ints, takes: Ints) -> Ints:
    """int64[n]: prompt positions among the next ``takes`` whose logits score the id after."""
    asked = table.sampling.prompt_logprobs[slots] >= 0
    if not asked.any():
        return np.zeros_like(takes)
    left = table.prompt_len[slots] - 1 - table.computed[slots]
    scored: Ints = np.where(asked, np.clip(left, 0, takes), 0)
    return scored


def spare_logits(table: SlotTable, slots: Ints, takes: Ints) -> int:
    """Logits rows that a pass over all of these rows leaves for drafts; below 1 for none."""
    return table.limits.max_logit_rows - len(slots) - int(num_scored(table, slots, takes).sum())


def split_passes(whole: Pass, table: SlotTable) -> Iterator[Pass]:
    """Cut a step into passes of at most ``max_logit_rows`` logits; each is run before the next is cut. Where
    one is not enough, nobody may draft.
    """
    if spare_logits(table, whole.slots, whole.takes) >= int(whole.drafts.sum()):
        yield whole
        return
    limit = table.limits.max_logit_rows
    left = whole.takes.copy()
    while left.any():
        needs = num_scored(table, whole.slots, left)
        budget = limit - int((left > 0).sum())
        takes = left.copy()
        for i in np.flatnonzero(needs > 0).tolist():
            # Scored positions come first in a row: as many tokens as logits still fit.
            takes[i] = left[i] if needs[i] <= budget else budget
            budget -= min(int(needs[i]), budget)
        chosen = takes > 0
        yield Pass(whole.rows[chosen], whole.slots[chosen], takes[chosen], np.zeros_like(takes[chosen]))
        left -= takes
