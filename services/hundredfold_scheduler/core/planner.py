"""Makes the next plan: computed tokens chase total ones under one budget, decodes first."""

from __future__ import annotations

from operator import add

from hundredfold_scheduler.core.ahead import Ahead
from hundredfold_scheduler.core.beam_group import PlannedBranch
from hundredfold_scheduler.core.budget import PLENTY, Budget
from hundredfold_scheduler.core.newcomers import Newcomers, Terms
from hundredfold_scheduler.core.pacing import LEAST, PromptShare, StartPace
from hundredfold_scheduler.core.preemption import Preemption
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.step import StepPlan
from hundredfold_scheduler.core.step_cost import Work, pairs_of
from hundredfold_scheduler.core.worker import InFlight, Worker

_RUNNING = Status.RUNNING


class Planner:
    """One plan per call. Amounts are upper bounds: a plan may be made before the result of the one before is
    in.
    """

    def __init__(
        self,
        state: State,
        newcomers: Newcomers,
        preemption: Preemption,
        share: PromptShare,
        pace: StartPace,
        ahead: Ahead,
    ) -> None:
        self._state = state
        self._newcomers = newcomers
        self._preemption = preemption
        self._share = share
        self._pace = pace
        self._ahead = ahead
        self._step = 0
        self._budget = Budget(0)
        self._context = 0
        """Tokens that the rows read which decode."""
        self._rows: list[Sequence] = []
        self._num_tokens: list[int] = []
        self._num_samples: list[int] = []
        self._num_drafts: list[int] = []
        """Of the first rows, which decode; empty when nobody may draft."""
        self._num_repeats = 0
        self._grown: list[Sequence] = []
        self._new: list[Sequence] = []
        self._branches: list[PlannedBranch] = []
        self._restarted: list[Sequence] = []
        """Beams that begin in this plan beside those of their group that have begun."""
        self._short_of_memory = False
        """A running sequence had to wait or to give way in this plan."""

    def plan(self, worker: Worker, now: float) -> StepPlan | None:
        """A worker's next step, or ``None`` when nothing can be done before a result or a request comes."""
        self._begin(worker)
        if worker.beams:
            self._plan_beams(worker)
        may_be_apart = worker.may_leave_decodes(len(self._state.waiting))
        if may_be_apart:
            prefills, decodes = worker.stands()
        else:
            prefills, decodes = self._plan_decodes(worker)
        starts = self._may_start(worker, decodes.rows, now)
        if may_be_apart:
            if self._plan_apart(prefills, decodes, starts, worker, now):
                return self._write_down(worker, 0, now)
            prefills, decodes = self._plan_decodes(worker)
        num_decodes = decodes.rows
        may_draft = 0 < num_decodes <= worker.limits.max_draft_rows
        self._budget = Budget(0)
        if prefills or starts or may_draft:
            self._budget = self._budget_of(worker, decodes)
        self._plan_prefills(prefills, starts, worker)
        if self._short_of_memory:
            num_decodes = self._drop_victims(num_decodes)
        if starts:
            self._admit(self._longest_beside(prefills, worker), worker, now)
        if not self._short_of_memory:
            self._give_back(num_decodes, worker)
            if not (prefills or self._new or worker.beams or len(self._state.waiting)):
                self._plan_repeats(decodes, worker)
            if may_draft:
                self._plan_drafts(num_decodes, worker)
        self._count_backlog(prefills, worker)
        told = self._rows or self._branches or self._restarted
        if not told and (worker.in_flight or not worker.slots.any_to_release):
            return None
        return self._write_down(worker, num_decodes, now)

    def _begin(self, worker: Worker) -> None:
        self._step = worker.planned + 1
        self._rows, self._num_tokens, self._num_samples, self._num_drafts = [], [], [], []
        self._context = self._num_repeats = 0
        self._grown, self._new = [], []
        self._branches, self._restarted = [], []
        self._short_of_memory = False

    def _plan_apart(
        self, prefills: list[Sequence], decodes: Work, starts: bool, worker: Worker, now: float
    ) -> bool:
        """Plan prompts alone that come to their end by it: their first tokens do not wait for the decodes.
        They may take a whole step's time; prompts of the next one get what is left of it. False when there
        are none.
        """
        if not (prefills or starts) or not self._share.prompts_first(worker, decodes):
            return False
        self._budget = self._budget_of(worker, decodes)
        has_share = self._budget.seconds < PLENTY
        self._budget.seconds += worker.cost.seconds(decodes)
        wanted = ((sequence.reserved, self._left(sequence)) for sequence in prefills)
        if not (has_share and self._budget.covers(wanted)):
            return False
        self._plan_prefills(prefills, starts, worker)
        if self._short_of_memory:
            self._drop_victims(0)
        if starts:
            self._admit(self._budget.most(0), worker, now)
        if self._rows:
            worker.prompts_first, worker.prompts_left_s = self._step, self._budget.seconds
            self._count_backlog(prefills, worker)
        return bool(self._rows)

    def _count_backlog(self, prefills: list[Sequence], worker: Worker) -> None:
        under_way = [sequence for sequence in (*prefills, *self._new) if sequence.status is _RUNNING]
        worker.backlog = sum(max(0, self._left(sequence)) for sequence in under_way)

    def _budget_of(self, worker: Worker, decodes: Work) -> Budget:
        """What a step may have beside such decodes."""
        budget = self._share.budget(worker, decodes, len(self._state.waiting), self._newcomers.num_owners)
        if worker.prompts_first == worker.planned and budget.seconds < PLENTY:
            left_s = min(worker.prompts_left_s, budget.seconds)
            budget.seconds = max(left_s, LEAST * worker.cost.seconds(decodes))
        return budget

    def _may_start(self, worker: Worker, num_decodes: int, now: float) -> bool:
        waiting = self._state.waiting
        may = self._pace.may_start(worker, waiting, num_decodes, self._step, now)
        return may and self._newcomers.can_seat(worker)

    def _plan_beams(self, worker: Worker) -> None:
        """Let groups go on as their searches have chosen, where there are blocks for it."""
        for group in list(worker.beams.values()):
            needed = group.blocks_to_branch(worker.cache.block_size)
            if group.chosen and self._free_blocks(needed, group.lead, worker):
                self._branches += group.branch(worker.cache)
            elif group.starting and group.lead.status is _RUNNING:
                self._restarted += group.start(worker.cache)

    def _free_blocks(self, needed: int, wanting: Sequence, worker: Worker) -> bool:
        """Have so many blocks available, if need be at others' cost; false when ``wanting`` has to wait."""
        if wanting.status is not _RUNNING:
            return False
        while worker.cache.pool.num_available < needed:
            self._short_of_memory = True
            victim = self._preemption.next_victim(wanting, worker)
            if victim is None:
                return False
            self._preemption.preempt(victim, worker)
        return True

    def _plan_decodes(self, worker: Worker) -> tuple[list[Sequence], Work]:
        """Plan every running sequence that has one token to compute; returns those that have more, and what
        the planned ones come to.

        The loop that costs most: it runs for every sequence in every step.
        """
        step, window, context = self._step, worker.limits.sliding_window or PLENTY, 0
        rows: list[Sequence] = []
        prefills: list[Sequence] = []
        for sequence in list(worker.running.values()):
            reserved, known = sequence.reserved, sequence.known
            if reserved >= sequence.last_needed:
                continue
            if known - reserved != 1:
                prefills.append(sequence)
                continue
            if sequence.capacity <= reserved and not self._make_room(sequence, reserved + 1, worker):
                continue
            sequence.reserved = known
            sequence.known = known + 1
            sequence.last_step = step
            context += known if known < window else window
            rows.append(sequence)
        self._rows, self._context = rows, context
        self._num_tokens = [1] * len(rows)
        self._num_samples = [1] * len(rows)
        return prefills, Work(len(rows), context)

    def _plan_prefills(self, prefills: list[Sequence], starts: bool, worker: Worker) -> None:
        """Plan the prompts under way. Where they want more than there is, the first one gets a quarter of it,
        and of the rest newcomers get half: short prompts do not wait for a long one, nor it for ever for
        them. What somebody leaves is given back at the end.
        """
        budget = self._budget
        wanted = ((sequence.reserved, self._left(sequence)) for sequence in prefills)
        if (len(prefills) == 1 and not starts) or budget.covers(wanted):
            for sequence in prefills:
                self._plan_prefill(sequence, budget, worker)
            return
        if budget.most(0) <= 0:
            return
        quarter = budget.set_apart(4)
        self._plan_prefill(prefills[0], quarter, worker)
        budget.add(quarter)
        kept = budget.set_apart(2) if starts else None
        for sequence in sorted(prefills[1:], key=self._left):
            self._plan_prefill(sequence, budget, worker)
        if kept is not None:
            budget.add(kept)

    def _plan_prefill(self, sequence: Sequence, budget: Budget, worker: Worker) -> None:
        """Plan the next chunk of a running sequence's known tokens, as much as budget and memory allow."""
        reserved = sequence.reserved
        most = budget.chunk(reserved, self._left(sequence))
        if sequence.status is not _RUNNING or most <= 0:
            return
        chunk = min(most, max(1, worker.cache.room(sequence) - reserved))
        if self._make_room(sequence, reserved + chunk, worker):
            budget.spend(reserved, chunk)
            self._add_row(sequence, chunk)

    def _add_row(self, sequence: Sequence, chunk: int) -> None:
        """A row of a chunk that was taken off the budget."""
        sequence.last_step = self._step
        self._rows.append(sequence)
        self._num_tokens.append(0)
        self._num_samples.append(0)
        self._advance(len(self._rows) - 1, chunk)

    def _advance(self, row: int, chunk: int) -> None:
        """Let a row compute so many tokens more; one that reaches its last known token samples the next."""
        sequence = self._rows[row]
        sequence.reserved += chunk
        samples = int(sequence.reserved == sequence.known)
        sequence.known += samples
        self._num_tokens[row] += chunk
        self._num_samples[row] = samples

    def _left(self, sequence: Sequence) -> int:
        """Tokens that could be computed next; the last token of an answer never is."""
        return min(sequence.known, sequence.last_needed) - sequence.reserved

    def _make_room(self, sequence: Sequence, num_tokens: int, worker: Worker) -> bool:
        """Let the sequence's table hold ``num_tokens``, if need be at others' cost; false when it has to wait
        or was a victim itself in this plan.
        """
        if sequence.status is not _RUNNING:
            return False
        leave = self._preemption.room_kept_from(sequence, worker)
        while not worker.cache.grow(sequence, num_tokens, leave):
            self._short_of_memory = True
            victim = self._preemption.next_victim(sequence, worker, leave)
            if victim is None:
                return False
            self._preemption.preempt(victim, worker)
            leave = self._preemption.room_kept_from(sequence, worker)
        if sequence.told_blocks < len(sequence.blocks):
            self._grown.append(sequence)
        return True

    def _drop_victims(self, num_decodes: int) -> int:
        """A row that was planned early may have given way to a later one. Returned is how many of the first
        rows, which decode, are left.
        """
        kept = [row for row, sequence in enumerate(self._rows) if sequence.status is _RUNNING]
        self._rows = [self._rows[row] for row in kept]
        self._num_tokens = [self._num_tokens[row] for row in kept]
        self._num_samples = [self._num_samples[row] for row in kept]
        self._grown = [sequence for sequence in self._grown if sequence.status is _RUNNING]
        self._restarted = [sequence for sequence in self._restarted if sequence.status is _RUNNING]
        self._branches = [planned for planned in self._branches if planned.sequence.status is _RUNNING]
        return sum(row < num_decodes for row in kept)

    def _longest_beside(self, prefills: list[Sequence], worker: Worker) -> int:
        """Tokens of a newcomer at most: beside prompts under way only such start as are done in this step, or
        are at most half as long as what is left of any of them.
        """
        under_way = [self._left(sequence) for sequence in prefills if sequence.status is _RUNNING]
        shortest = min((left for left in under_way if left > 0), default=2 * worker.limits.max_model_len)
        return max(self._budget.most(0), shortest // 2)

    def _admit(self, longest: int, worker: Worker, now: float) -> None:
        """Seat waiting sequences in their order while seats, budget and memory last."""
        terms = Terms(self._budget, longest, self._short_of_memory)
        for sequence, chunk in self._newcomers.seat(worker, terms, now):
            self._new.append(sequence)
            self._add_row(sequence, chunk)
        if self._new:
            worker.last_start = self._step

    def _give_back(self, num_decodes: int, worker: Worker) -> None:
        """Let prompts under way have what is left of the budget, the shortest first."""
        rows = range(num_decodes, len(self._rows))
        if self._budget.most(0) <= 0 or not rows:
            return
        for row in sorted(rows, key=lambda row: self._left(self._rows[row])):
            sequence = self._rows[row]
            reserved = sequence.reserved
            most = self._budget.chunk(reserved, self._left(sequence))
            more = min(most, worker.cache.room(sequence) - reserved)
            if self._num_samples[row] or more <= 0:
                continue
            is_told = sequence.told_blocks == len(sequence.blocks)
            if not worker.cache.grow(sequence, reserved + more):
                continue
            if is_told and sequence.told_blocks < len(sequence.blocks):
                self._grown.append(sequence)
            self._budget.spend(reserved, more)
            self._advance(row, more)

    def _plan_repeats(self, decodes: Work, worker: Worker) -> None:
        """Let decodes that nobody waits behind go on in this plan."""
        counts = self._ahead.repeats(self._rows, decodes, worker)
        if not counts:
            return
        self._num_repeats = max(counts)
        for row, count in enumerate(counts):
            self._num_tokens[row] += count
            self._num_samples[row] += count
        self._tell_growth(self._rows)

    def _plan_drafts(self, num_decodes: int, worker: Worker) -> None:
        """Let rows that decode try drafts, from what is left when everybody else has what they want: an equal
        share of the budget, and blocks that nobody was promised. The worker knows how many are worth it.
        """
        context, rows = self._context // num_decodes, self._rows[:num_decodes]
        most = min(worker.limits.max_draft_tokens, self._budget.most(context) // num_decodes)
        if most <= 0:
            return
        self._num_drafts = self._ahead.drafts(rows, most, worker)
        for row, count in enumerate(self._num_drafts):
            self._num_samples[row] += count
        self._budget.spend(context, sum(self._num_drafts))
        self._tell_growth(rows)

    def _tell_growth(self, rows: list[Sequence]) -> None:
        self._grown += [sequence for sequence in rows if sequence.told_blocks < len(sequence.blocks)]

    def _write_down(self, worker: Worker, num_decodes: int, now: float) -> StepPlan:
        worker.planned, worker.num_repeats = self._step, self._num_repeats
        plan = StepPlan(
            self._step,
            released_slots=worker.slots.take_released(),
            new_sequences=[sequence.introduce() for sequence in (*self._restarted, *self._new)],
            slots=[sequence.slot for sequence in self._rows],
            num_tokens=self._num_tokens,
            num_repeats=self._num_repeats,
        )
        advance, num_drafts = self._num_tokens, sum(self._num_drafts)
        if num_drafts:
            others = len(advance) - len(self._num_drafts)
            plan.num_draft_tokens = self._num_drafts + [0] * others
            advance = list(map(add, advance, plan.num_draft_tokens))
        work = self._work(num_decodes, worker)
        for planned in self._branches:
            plan.branches.append(planned.branch)
            planned.sequence.introduced = True
            if planned.copy is not None:
                plan.copies.append(planned.copy)
        for sequence in self._grown:
            blocks = sequence.blocks[sequence.told_blocks :]
            if not blocks:
                continue  # they were told when it was introduced
            plan.grown_slots.append(sequence.slot)
            plan.grown_counts.append(len(blocks))
            plan.grown_block_ids.extend(blocks)
            sequence.told_blocks = len(sequence.blocks)
        worker.in_flight.append(
            InFlight(
                self._step,
                self._rows,
                advance,
                self._num_samples,
                now,
                work,
                num_drafts,
                self._num_repeats,
                worker.will_take(work) * (1 + self._num_repeats),
            )
        )
        return plan

    def _work(self, num_decodes: int, worker: Worker) -> Work:
        """What the plan computes, drafts apart."""
        tokens = pairs = 0
        window = worker.limits.sliding_window or PLENTY
        for sequence, count in zip(self._rows[num_decodes:], self._num_tokens[num_decodes:], strict=True):
            tokens += count
            pairs += pairs_of(count, min(sequence.reserved - count, window))
        return Work(num_decodes, self._context, tokens, pairs)
