"""Speculation that has to happen at least once, however busy the machine is."""

from __future__ import annotations

import asyncio

from support.door import generate_all, request
from support.stack import Stack

ASKED = 20
"""Times that a request is asked before the worker is started anew."""


def accepted(stack: Stack) -> int:
    """Drafts that were right since the scheduler's start."""
    return int(stack.load().totals["accepted_tokens"])


def draft_until_accepted(stack: Stack, more_than: int = 0) -> int:
    """Ask for what can only repeat itself until drafts are right; how often it was asked.

    On a busy machine drafts rest while they cost more than they bring, and a worker that measured at such a
    moment tries none at all until it measures again. Raises ``AssertionError`` when three workers try none.
    """
    repeating = request([5, 6, 7], max_tokens=200, ignore_eos=True, temperature=0.0, logit_bias={9: 100.0})
    for asked in range(3 * ASKED):
        if accepted(stack) > more_than:
            return asked
        if asked and asked % ASKED == 0:
            stack.kill("worker")
            stack.wait_ready()
        answer = asyncio.run(generate_all(stack.address, [repeating]))[0]
        assert answer.token_ids == [9] * 200
    raise AssertionError(f"no draft was right: {stack.load().totals}\n{stack.log('worker')[-2000:]}")
