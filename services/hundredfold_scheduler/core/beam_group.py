"""The beams of one request: sequences with a seat each that are seated, moved and ended together.

A running beam has nothing to compute until the candidates of all are in and the search has chosen; then some
of them go on in place, some as copies of others, and those that nobody goes on from rest in their seats.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hundredfold_scheduler.core.beam_search import BeamSearch, BeamTerms, Continuation
from hundredfold_scheduler.core.step import Branch, Candidates

if TYPE_CHECKING:
    from hundredfold_scheduler.core.cache import Cache
    from hundredfold_scheduler.core.request import Sequence


@dataclass(frozen=True, slots=True)
class PlannedBranch:
    """A branch in a plan that is being made; void if the beam gives way before it is written down."""

    sequence: Sequence
    branch: Branch
    copy: tuple[int, int] | None
    """Block of the source whose beginning the beam goes on from, and its own copy."""


class BeamGroup:
    """Whichever beam takes which seat is of no consequence; the first member stands for all in the queue."""

    __slots__ = ("answers", "chosen", "live", "members", "search", "starting")

    def __init__(self, terms: BeamTerms, stop_token_ids: frozenset[int], members: list[Sequence]) -> None:
        self.search = BeamSearch(terms, stop_token_ids)
        self.members = members
        self.live = members[:1]
        """Running beams, best first. The others rest."""
        self.starting: list[Sequence] = []
        """Live beams that begin again with the next plan, now that the first one has its tokens computed."""
        self.answers: dict[int, Candidates] = {}
        """What may follow, by the number of the beam."""
        self.chosen: list[Continuation] = []
        """What the search has chosen and no plan has said yet."""
        for member in members:
            member.beams = self
            member.last_needed = member.total
        for member in members[1:]:
            member.become(array("I"))

    @property
    def lead(self) -> Sequence:
        """The member that stands for all."""
        return self.members[0]

    def set_max_tokens(self, max_tokens: int) -> None:
        """Set the output limit of all beams."""
        for member in self.members:
            member.max_tokens = max_tokens
            member.end_total = member.prompt_len + max_tokens

    def answer(self, sequence: Sequence, candidates: Candidates) -> None:
        """A live beam's candidates are in. Once the first has its own, the others may share its blocks."""
        self.answers[sequence.number] = candidates
        if len(self.answers) == 1 < len(self.live) and not self.live[-1].introduced:
            self.starting = [member for member in self.live if not member.introduced]

    @property
    def is_answered(self) -> bool:
        """Whether the search can choose."""
        return len(self.answers) == len(self.live)

    def choose(self) -> list[Sequence]:
        """Let the search choose; returns the live beams that nobody goes on from."""
        start, max_tokens = self.lead.prompt_len, self.lead.max_tokens
        outputs = [member.tokens[start:] for member in self.live]
        found = [self.answers[member.number] for member in self.live]
        self.answers = {}
        self.chosen = self.search.advance(outputs, found, max_tokens)
        parents = {found.beam for found in self.chosen}
        return [member for place, member in enumerate(self.live) if place not in parents]

    def blocks_to_branch(self, block_size: int) -> int:
        """Blocks that the chosen beams need at once: one for each that copies the beginning of a block."""
        parents = {found.beam for found in self.chosen}
        if not parents:
            return 0
        length = self.live[self.chosen[0].beam].total
        return (len(self.chosen) - len(parents)) * bool(length % block_size)

    def branch(self, cache: Cache) -> list[PlannedBranch]:
        """Make the chosen beams the live ones. The blocks they need are there."""
        before, chosen = self.live, self.chosen
        parents = {id(before[found.beam]) for found in chosen}
        resting = [member for member in self.members if id(member) not in parents]
        in_place: set[int] = set()
        self.live, self.chosen = [], []
        planned: list[PlannedBranch] = []
        for found in chosen:
            parent = before[found.beam]
            slot, token, kept = parent.slot, found.token_id, len(parent.blocks)
            own: list[int] = []
            copy = None
            if id(parent) in in_place:
                child = resting.pop()
                child.become(parent.tokens)
                own = cache.branch(child, parent)
                kept = len(child.blocks) - len(own)
                copy = (parent.blocks[kept], own[0]) if own else None
            else:
                child = parent
                in_place.add(id(parent))
            self.live.append(child)
            planned.append(PlannedBranch(child, Branch(child.slot, slot, token, kept, own), copy))
        for found, child in zip(chosen, self.live, strict=True):
            child.extend(found.token_id)
        return planned

    def restart(self) -> None:
        """Forget what a worker holds: the live beams, as chosen last, begin again from their ids."""
        histories = [self.live[found.beam].tokens + array("I", [found.token_id]) for found in self.chosen]
        histories = histories or [member.tokens for member in self.live]
        self.live = self.members[: len(histories)]
        self.starting, self.answers, self.chosen = [], {}, []
        for place, member in enumerate(self.members):
            member.become(histories[place] if place < len(histories) else array("I"))
            member.introduced = False

    def rest_until_started(self) -> None:
        """All have their seats; all but the first have nothing to compute until the first is done."""
        for member in self.members[1:]:
            member.last_needed = 0

    def start(self, cache: Cache) -> list[Sequence]:
        """Begin with the beams that waited for the first, on the blocks that they have in common with it."""
        started, self.starting = self.starting, []
        lead = self.live[0]
        for member in started:
            member.last_needed = member.total
            alike = _common(member.tokens, lead.tokens)
            full = min(alike, lead.computed, member.total - 1) // cache.block_size
            cache.adopt(member, lead.blocks[:full], promised=0)
        return started


def _common(one: array[int], other: array[int]) -> int:
    """Length of the beginning that two runs of ids share."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))
