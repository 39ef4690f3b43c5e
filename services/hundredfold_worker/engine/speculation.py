"""Speculation: asks a drafter, decides who tries how many drafts, and learns from what became of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hundredfold.plugin import Drafter, DraftRequest
from hundredfold.telemetry import get_logger
from hundredfold_worker.engine.draft_cost import DraftCost
from hundredfold_worker.engine.passes import spare_logits
from hundredfold_worker.engine.plan import Ints
from hundredfold_worker.engine.slots import EngineLimits, SlotTable

log = get_logger(__name__)

_FIRST_CHANCE = 0.5
_PRIOR = 3
"""Drafts that the first chance counts for, one of them the next."""
_LEAST_WEIGHT = 0.1
"""Of a draft against what was learned before: about the last ten of a sequence count."""
_USUAL_WEIGHT = 0.01
"""The same over all sequences, whose usual chance is the first one of the next."""
_REST_AFTER, _REST_EVERY = 16, 4
"""After so many passes without a draft a sequence is only drafted for in every so manieth."""
_MOST_HOPE = 0.7
"""No sequence begins with more: what others copy, it may not."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    slot: int
    draft: list[int]
    length: int
    """Tokens that the sequence had."""


class Speculation:
    """A sequence for which drafts do not pay goes on being drafted for, without a position being computed:
    what it then draws says just as well whether they were right. So a rest costs little, the less the longer
    it is, and ends by itself.
    """

    def __init__(self, drafter: Drafter, cost: DraftCost, limits: EngineLimits) -> None:
        self._drafter: Drafter | None = drafter
        self._cost = cost
        self._vocab_size = limits.vocab_size
        self._usual = _FIRST_CHANCE
        self._chance = np.full(limits.max_num_seqs, self._usual)
        self._tried = np.zeros(limits.max_num_seqs, dtype=np.int64)
        self._rested = np.zeros(limits.max_num_seqs, dtype=np.int64)
        """Passes since a draft was tried."""
        self._proposals: list[_Proposal] = []
        self._positions = 0
        """Of the step, if all its rows decode; else 0."""
        self._num_drafts = 0

    def draft(self, table: SlotTable, slots: Ints, takes: Ints, allowed: Ints) -> Ints:
        """Put drafts behind the known tokens of ``slots`` int64[n], whose next ``takes`` are computed, at
        most ``allowed`` each. Returns int64[n]: how many.
        """
        drafts: Ints = np.zeros_like(takes)
        self._proposals, self._positions, self._num_drafts = [], 0, 0
        rested = self._rested[slots]
        self._rested[slots] = rested + 1
        asked = (rested < _REST_AFTER) | (rested % _REST_EVERY == 0)
        if not asked.any():
            return drafts
        num_outputs = table.num_outputs(slots)
        left = table.sampling.max_tokens[slots] - num_outputs
        draws = (table.computed[slots] + takes == table.length[slots]) & (left > 0)
        draws &= table.sampling.num_candidates[slots] == 0
        room = np.where(draws & asked, np.minimum(allowed, left - 1), 0)
        at = np.flatnonzero(room > 0)
        requests = [
            DraftRequest(int(slots[i]), table.tokens_of(int(slots[i])), int(room[i])) for i in at.tolist()
        ]
        self._proposals = self._ask(requests) if requests else []
        offered = np.array([len(proposal.draft) for proposal in self._proposals], dtype=np.int64)
        positions, rows = int(takes.sum()), int(draws.sum())
        most = spare_logits(table, slots, takes)
        drafts[at] = self._cost.allot(self._chance[slots[at]], offered, rows, positions, most)
        for proposal, count in zip(self._proposals, drafts[at].tolist(), strict=True):
            length = proposal.length
            table.ids[proposal.slot, length : length + count] = proposal.draft[:count]
        self._rested[slots[drafts > 0]] = 0
        self._num_drafts = int(drafts.sum())
        self._positions = positions + self._num_drafts if positions == len(slots) == rows else 0
        return drafts

    def learn(self, table: SlotTable, seconds: float) -> None:
        """The step of the last drafts is done, and took so long."""
        if self._positions:
            self._cost.observe(self._positions, self._num_drafts, seconds)
        for proposal in self._proposals:
            slot, draft = proposal.slot, proposal.draft
            drawn = table.ids[slot, proposal.length : table.length[slot]].tolist()
            if not draft or not drawn:
                continue
            told = min(len(draft), len(drawn))
            right = next((i for i in range(told) if draft[i] != drawn[i]), told)
            self._count(slot, right, right < told)
            if self._drafter is not None:
                self._drafter.observe(slot, told, right)

    def forget(self, slots: Ints) -> None:
        """The sequences of these slots are gone."""
        self._chance[slots] = min(self._usual, _MOST_HOPE)
        self._tried[slots] = self._rested[slots] = 0
        if self._drafter is not None:
            for slot in slots.tolist():
                self._drafter.forget(slot)

    def _count(self, slot: int, right: int, missed: bool) -> None:
        chance, tried = float(self._chance[slot]), int(self._tried[slot])
        for outcome in [1.0] * right + [0.0] * missed:
            chance += max(_LEAST_WEIGHT, 1 / (tried + _PRIOR)) * (outcome - chance)
            self._usual += _USUAL_WEIGHT * (outcome - self._usual)
            tried += 1
        self._chance[slot], self._tried[slot] = chance, tried

    def _ask(self, requests: list[DraftRequest]) -> list[_Proposal]:
        """What the drafter proposes; one that fails is not asked again, and nobody's answer suffers."""
        drafts: list[list[int]] = [[] for _ in requests]
        if self._drafter is not None:
            try:
                drafts = self._drafter.propose(requests)
                self._check(requests, drafts)
            except Exception:
                log.exception("the drafter failed; speculation is off until the worker starts again")
                self._drafter = None
                drafts = [[] for _ in requests]
        return [
            _Proposal(request.slot, draft, len(request.token_ids))
            for request, draft in zip(requests, drafts, strict=True)
        ]

    def _check(self, requests: list[DraftRequest], drafts: list[list[int]]) -> None:
        if len(drafts) != len(requests):
            raise ValueError(f"{len(drafts)} drafts for {len(requests)} requests")
        for request, draft in zip(requests, drafts, strict=True):
            if len(draft) > request.max_draft_tokens:
                raise ValueError(f"{len(draft)} draft tokens, at most {request.max_draft_tokens} were wanted")
            if draft and not (min(draft) >= 0 and max(draft) < self._vocab_size):
                raise ValueError(f"drafts {draft} leave the vocabulary of {self._vocab_size}")
