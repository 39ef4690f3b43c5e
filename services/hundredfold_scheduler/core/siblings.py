"""Sequences that wait for another of their request: so a prompt is computed once, and beams move as one."""

from __future__ import annotations

from hundredfold_scheduler.core.request import Request, Sequence, Status
from hundredfold_scheduler.core.state import State


def hold(state: State, sequence: Sequence) -> None:
    """Keep a sequence out of the queue."""
    sequence.status = Status.HELD
    _count(state, sequence, 1)


def let_go(state: State, sequence: Sequence) -> None:
    """A held sequence is held no more; where it goes is the caller's business."""
    _count(state, sequence, -1)


def _count(state: State, sequence: Sequence, change: int) -> None:
    if sequence.started:
        state.num_held_again += change
    else:
        state.num_held += change


def follow(state: State, lead: Sequence, sequence: Sequence) -> None:
    """Let a sequence wait for the first token of another."""
    lead.leads = True
    sequence.request.followers.append(sequence)
    hold(state, sequence)


def enqueue(state: State, request: Request) -> None:
    """A new request: its first sequence queues up, the others wait for it."""
    first, *others = request.sequences.values()
    state.waiting.push(first)
    for sequence in others:
        if request.beams is None:
            follow(state, first, sequence)
        else:
            hold(state, sequence)


def release_followers(state: State, lead: Sequence) -> None:
    """The prompt is computed and its blocks are known: the other choices queue up to share them."""
    lead.leads = False
    followers, lead.request.followers = lead.request.followers, []
    for sequence in followers:
        let_go(state, sequence)
        sequence.status = Status.WAITING
        state.waiting.push(sequence)
