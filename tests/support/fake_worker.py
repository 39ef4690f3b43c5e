"""A worker without a model that distrusts its scheduler.

It remembers which token every cache position holds, and raises ``PlanViolation`` for any plan that a real
worker would silently compute wrong.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Iterable, Sequence
from ctypes import c_float
from dataclasses import dataclass, field

from hundredfold_scheduler.core.beam_search import BeamSearch, BeamTerms, Hypothesis
from hundredfold_scheduler.core.step import (
    Candidates,
    EndReason,
    NewSequence,
    RowCandidates,
    RowEnd,
    RowFailure,
    StepPlan,
    StepResult,
)

EOS = 2
"""The id that ends a scripted sequence."""
FIRST_ID = 3
INTERNAL = 13


class PlanViolation(AssertionError):
    """A plan that breaks the contract between scheduler and worker."""


@dataclass(frozen=True, slots=True)
class Script:
    """How a sequence ends, beside by length. Counted in output tokens; 0 is never."""

    stop_at: int = 0
    """This output token is ``EOS``."""
    fail_at: int = 0
    """Instead of this output token the row fails."""

    @property
    def seed(self) -> int:
        """The script as a seed, so that it can travel in ``SequenceParams``."""
        return self.stop_at | self.fail_at << 32

    @classmethod
    def of_seed(cls, seed: int) -> Script:
        """The inverse of ``seed``."""
        return cls(seed & 0xFFFFFFFF, seed >> 32)


def token_at(prompt: Sequence[int], position: int, vocab_size: int, choice: int = 0) -> int:
    """The output token at a position: decided by prompt, choice and position alone, so that no history can
    excuse an error.
    """
    state = zlib.crc32(array("I", prompt).tobytes(), choice)
    return FIRST_ID + zlib.crc32(position.to_bytes(4, "little"), state) % (vocab_size - FIRST_ID)


def expected_output(
    prompt: Sequence[int], max_tokens: int, script: Script, vocab_size: int, choice: int = 0
) -> list[int]:
    """All output ids of a choice that nobody disturbs."""
    length = max_tokens
    if script.stop_at:
        length = min(length, script.stop_at)
    ids = [token_at(prompt, position, vocab_size, choice) for position in range(length)]
    if script.stop_at and script.stop_at == length:
        ids[-1] = EOS
    return ids


def candidates_after(tokens: Sequence[int], count: int, vocab_size: int) -> Candidates:
    """What may follow a beam, decided by its tokens; now and then ``EOS`` is among the best."""
    rng = random.Random(zlib.crc32(array("I", tokens).tobytes()))
    ids = rng.sample(range(FIRST_ID, vocab_size), count - 1)
    ids.insert(rng.randrange(2 * count), EOS)
    logprobs = sorted((c_float(-rng.expovariate(0.5)).value for _ in ids), reverse=True)
    return Candidates(ids, logprobs)


def expected_beams(
    prompt: Sequence[int], max_tokens: int, terms: BeamTerms, vocab_size: int
) -> list[Hypothesis]:
    """The complete beams of a search that nobody disturbs."""
    search = BeamSearch(terms, frozenset({EOS}))
    outputs = [array("I")]
    while not search.over:
        found = [candidates_after([*prompt, *o], search.num_candidates, vocab_size) for o in outputs]
        going_on = search.advance(outputs, found, max_tokens)
        outputs = [outputs[one.beam] + array("I", [one.token_id]) for one in going_on]
    return search.complete


@dataclass(slots=True)
class Held:
    """A sequence in a slot."""

    new: NewSequence
    script: Script
    tokens: list[int]
    """Prompt and outputs."""
    blocks: list[int]
    computed: int
    ended: bool = False

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.new.prompt)


@dataclass(slots=True)
class FakeWorker:
    """Computes plans in order. ``content[block][offset]`` names the token there and all tokens before it."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int = 1000
    remembers: bool = True
    """Whether the cache's content is checked; too slow for thousands of long sequences."""
    sliding_window: int | None = None
    """Tokens that a token sees, itself included; what lies before may be another's."""
    max_draft_tokens: int = 0
    plans_ahead: int = 2
    """Plans that may be made before a result is in: how far their upper bounds may be off."""
    held: dict[int, Held] = field(default_factory=dict)
    steps: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    """Tokens that sequences found in the cache when they were seated."""
    branched: dict[int, Held] = field(default_factory=dict)
    content: list[list[int | None]] = field(init=False)
    luck: random.Random = field(default_factory=lambda: random.Random(0))
    """Decides how many drafts are tried, and how many of them are right."""
    share_cut: float = 0.2
    """Of plans that go on, how many end early."""
    most_repeats: int = 0

    def __post_init__(self) -> None:
        self.content = [[None] * self.block_size for _ in range(self.num_blocks)]

    def step(self, plan: StepPlan) -> StepResult:
        """Compute one plan. Raises ``PlanViolation``."""
        self.steps += 1
        _require(plan.step == self.steps, f"step {plan.step} came as number {self.steps}")
        self._release(plan.released_slots)
        for new in plan.new_sequences:
            self._seat(new)
        self._branch(plan)
        self._grow(plan)
        self._check_tables()
        self._copy(plan.copies)
        return self._compute(plan)

    def _release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            _require(slot in self.held, f"slot {slot} is released and was empty")
            del self.held[slot]

    def _seat(self, new: NewSequence) -> None:
        _require(new.slot not in self.held, f"slot {new.slot} is taken")
        _require(0 <= new.slot < self.max_num_seqs, f"slot {new.slot} of {self.max_num_seqs}")
        tokens = [*new.prompt, *new.output]
        _require(0 <= new.num_computed_tokens < len(tokens), "a sequence starts with nothing left to compute")
        held = Held(new, script_of(new.params), tokens, list(new.block_ids), new.num_computed_tokens)
        _require(len(new.output) < max(1, new.max_tokens), "a sequence starts though it has ended")
        self.held[new.slot] = held
        self.reused_tokens += new.num_computed_tokens

    def _branch(self, plan: StepPlan) -> None:
        """Beams go on as others, all sources as they were before the first."""
        before = {slot: (list(held.tokens), list(held.blocks)) for slot, held in self.held.items()}
        slots = [branch.slot for branch in plan.branches]
        _require(len(set(slots)) == len(slots), "two branches into one slot")
        for branch in plan.branches:
            source = self.held.get(branch.source_slot)
            _require(source is not None and source.new.num_candidates, "a branch from what is no beam")
            assert source is not None
            held = self.held.get(branch.slot)
            _require(held is None or held.new.num_candidates, "a branch into what is no beam")
            tokens, blocks = before[branch.source_slot]
            _require(branch.kept_blocks <= len(blocks), "a branch keeps blocks that its source lacks")
            table = blocks[: branch.kept_blocks] + branch.block_ids
            twin = Held(source.new, source.script, [*tokens, branch.token_id], table, len(tokens))
            _require(len(table) * self.block_size >= len(tokens), "a branch into too few blocks")
            _require(twin.num_output < source.new.max_tokens, "a beam goes on past its end")
            if branch.slot == branch.source_slot:
                _require(source.computed == len(tokens), "a beam branches before it is computed")
            self.branched[branch.slot] = twin
        self.held.update(self.branched)
        self.branched.clear()

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        destinations = [destination for _, destination in copies]
        _require(len(set(destinations)) == len(destinations), "a block is copied to twice")
        _require({source for source, _ in copies}.isdisjoint(destinations), "a copy is copied")
        for source, destination in copies:
            holders = [held for held in self.held.values() if destination in self._seen(held)]
            _require(len(holders) == 1, f"block {destination} is copied to and has {len(holders)} holders")
            self.content[destination] = list(self.content[source])

    def _grow(self, plan: StepPlan) -> None:
        _require(len(set(plan.grown_slots)) == len(plan.grown_slots), "a table grows twice in one plan")
        _require(sum(plan.grown_counts) == len(plan.grown_block_ids), "grown counts and blocks disagree")
        start = 0
        for slot, count in zip(plan.grown_slots, plan.grown_counts, strict=True):
            _require(slot in self.held, f"the table of empty slot {slot} grows")
            self.held[slot].blocks += plan.grown_block_ids[start : start + count]
            start += count

    def _check_tables(self) -> None:
        """Two sequences may share a block only if both have computed all of it, and it is at the same
        place.
        """
        holders: dict[int, tuple[Held, int]] = {}
        for held in self.held.values():
            for place, block in enumerate(held.blocks):
                _require(0 <= block < self.num_blocks, f"block {block} of {self.num_blocks}")
                if place < self._first_seen(held) // self.block_size:
                    continue
                if block not in holders:
                    holders[block] = (held, place)
                    continue
                other, other_place = holders[block]
                full = (place + 1) * self.block_size
                _require(place == other_place, f"block {block} is in two tables at different places")
                _require(
                    min(held.computed, other.computed) >= full,
                    f"block {block} is shared though it is not full",
                )

    def _compute(self, plan: StepPlan) -> StepResult:
        _require(
            len(plan.slots) <= self.max_num_seqs, f"{len(plan.slots)} rows for {self.max_num_seqs} seats"
        )
        _require(len(set(plan.slots)) == len(plan.slots), "a slot has two rows")
        allowed = plan.num_draft_tokens or [0] * len(plan.slots)
        _require(len(allowed) == len(plan.slots), f"{len(allowed)} allowances of {len(plan.slots)} rows")
        _require(all(0 <= few <= self.max_draft_tokens for few in allowed), f"drafts of {allowed}")
        num_tokens = sum(plan.num_tokens) if not plan.num_repeats else len(plan.slots)
        num_tokens += sum(allowed)
        _require(num_tokens <= self.max_num_batched_tokens, f"{num_tokens} tokens in a pass")
        self.most_repeats = max(self.most_repeats, plan.num_repeats)
        # A pass with drafts is the last one, and so is one while the next plan brings sequences.
        is_cut = any(allowed) or (plan.num_repeats and self.luck.random() < self.share_cut)
        repeats = self.luck.randint(0, plan.num_repeats) if is_cut else plan.num_repeats
        repeated = 0
        computed, counts, ids, drafted = array("I"), array("I"), array("I"), array("I")
        ends: list[RowEnd] = []
        failures: list[RowFailure] = []
        searched: list[RowCandidates] = []
        rows = zip(plan.slots, plan.num_tokens, allowed, strict=True)
        for row, (slot, num_tokens, most) in enumerate(rows):
            _require(slot in self.held, f"row {row} names the empty slot {slot}")
            held = self.held[slot]
            before, tried = held.num_output, 0
            if not held.ended:
                _require(not (most and held.new.num_candidates), "a beam may draft")
                tried = self.luck.randint(0, most) if most else 0
                _require(not (plan.num_repeats and held.new.num_candidates), "a beam may go on by itself")
                failure, times = self._advance(held, num_tokens, most, repeats)
                repeated = max(repeated, times)
                tried = tried if times == repeats and not failure and not held.ended else 0
                if tried:
                    self._try_drafts(held, tried)
                if failure:
                    failures.append(RowFailure(row, INTERNAL, failure))
                elif held.ended:
                    stopped = held.num_output and held.tokens[-1] == EOS
                    reason = EndReason.STOP if stopped else EndReason.LENGTH
                    ends.append(RowEnd(row, reason, EOS if stopped else None))
                elif held.new.num_candidates and held.computed == len(held.tokens):
                    found = candidates_after(held.tokens, held.new.num_candidates, self.vocab_size)
                    searched.append(RowCandidates(row, found))
            count = held.num_output - before
            computed.append(held.computed)
            counts.append(count)
            drafted.append(tried)
            ids.extend(held.tokens[len(held.tokens) - count :])
        tried_any = drafted if any(drafted) else ()
        return StepResult(
            plan.step,
            computed,
            counts,
            ids,
            ends,
            failures,
            candidates=searched,
            num_drafted_tokens=tried_any,
            num_repeats=repeated,
        )

    def _try_drafts(self, held: Held, tried: int) -> None:
        """Some drafts are right; the places of the others hold what nobody may read."""
        right = self.luck.randint(0, tried)
        for number in range(tried):
            if number < right and not held.ended and held.script.fail_at != held.num_output + 1:
                if self.remembers:
                    self._write_cache(held, held.computed + 1)
                held.computed += 1
                self._sample(held)
        self.computed_tokens += tried
        for position in range(held.computed, held.computed + tried - right):
            if self.remembers and position < len(held.blocks) * self.block_size:
                self.content[held.blocks[position // self.block_size]][position % self.block_size] = None

    def _advance(self, held: Held, num_tokens: int, most_drafts: int, repeats: int) -> tuple[str, int]:
        """Compute and, at the last known token, sample, and go on so. Returns what failed, and how often it
        went on.
        """
        _require(num_tokens >= 1, "a row without tokens")
        end = held.computed + num_tokens
        reach = end + most_drafts
        _require(reach <= len(held.blocks) * self.block_size, f"{reach} tokens in {len(held.blocks)} blocks")
        unused = len(held.blocks) * self.block_size - end
        ahead = self.plans_ahead * (self.max_draft_tokens + self.most_repeats)
        _require(
            unused < self.block_size + ahead, f"{unused} slots of {held.new.sequence_id} are held for nothing"
        )
        if not self.most_repeats:
            _require(end <= len(held.tokens), f"{end} tokens to compute, {len(held.tokens)} known")
        failure, times = self._pass(held, min(end, len(held.tokens)), reach), 0
        while times < repeats and held.computed < end and not (failure or held.ended):
            failure = self._pass(held, held.computed + 1, reach)
            times += 1
        return failure, times

    def _pass(self, held: Held, end: int, reach: int) -> str:
        """Compute up to ``end``, in a plan that may write up to ``reach``."""
        writes = {held.blocks[position // self.block_size] for position in range(held.computed, reach)}
        for other in self.held.values():
            _require(other is held or writes.isdisjoint(self._seen(other)), "a shared block is written")
        if self.remembers:
            self._write_cache(held, end)
        self.computed_tokens += end - held.computed
        held.computed = end
        if end < len(held.tokens):
            return ""
        return self._sample(held)

    def _write_cache(self, held: Held, end: int) -> None:
        """Check every position that the row reads, then write its own. O(length)."""
        chain = 0
        for position, token in enumerate(held.tokens[:end]):
            chain = hash((chain, token))
            block, offset = held.blocks[position // self.block_size], position % self.block_size
            if position < self._first_seen(held):
                continue
            if position < held.computed:
                found = self.content[block][offset]
                _require(found == chain, f"block {block} offset {offset} does not hold position {position}")
            else:
                self.content[block][offset] = chain

    def _seen(self, held: Held) -> list[int]:
        """The blocks that its next token sees, and those after."""
        return held.blocks[self._first_seen(held) // self.block_size :]

    def _first_seen(self, held: Held) -> int:
        """The first position that its next token sees."""
        return 0 if self.sliding_window is None else max(0, held.computed - self.sliding_window + 1)

    def _sample(self, held: Held) -> str:
        limit, script = held.new.max_tokens, held.script
        if limit:
            position = held.num_output
            if script.fail_at == position + 1:
                held.ended = True
                return f"sequence {held.new.sequence_id} has non-finite logits"
            if held.new.num_candidates:
                return ""
            stops = script.stop_at == position + 1
            choice = held.new.choice_index
            held.tokens.append(EOS if stops else token_at(held.new.prompt, position, self.vocab_size, choice))
            held.ended = stops
        held.ended = held.ended or held.num_output >= limit
        return ""


def script_of(params: object) -> Script:
    """The script in a sequence's parameters: as such in tests of the core, in the seed where it came over the
    wire.
    """
    if isinstance(params, Script):
        return params
    return Script.of_seed(int(getattr(params, "seed", 0)))


def _require(condition: object, message: str) -> None:
    if not condition:
        raise PlanViolation(message)
