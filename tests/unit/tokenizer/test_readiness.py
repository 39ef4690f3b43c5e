"""Readiness bears short losses and tells the reason of long ones."""

from __future__ import annotations

import asyncio

from hundredfold_tokenizer.readiness import Readiness
from hundredfold_tokenizer.requests.attachment import Link

READY = Link(attached=True, worker_ready=True)
NO_WORKER = Link(attached=True)
AWAY = Link()


async def test_ready_only_with_scheduler_and_worker() -> None:
    told: list[tuple[bool, str]] = []
    readiness = Readiness(lambda ready, reason: told.append((ready, reason)), 0.1, "host:1")
    readiness.follow(AWAY)
    readiness.follow(NO_WORKER)
    readiness.follow(READY)
    assert [ready for ready, _ in told] == [False, False, True]
    assert "host:1" in told[0][1]
    assert "no worker" in told[1][1]


async def test_a_loss_is_borne_for_the_grace() -> None:
    told: list[tuple[bool, str]] = []
    readiness = Readiness(lambda ready, reason: told.append((ready, reason)), 0.5, "host:1")
    readiness.follow(READY)
    readiness.follow(NO_WORKER)
    readiness.follow(AWAY)
    await asyncio.sleep(0.03)
    readiness.follow(READY)
    await asyncio.sleep(0.6)
    assert [ready for ready, _ in told] == [True, True]
    readiness.follow(AWAY)
    readiness.follow(NO_WORKER)
    await asyncio.sleep(0.6)
    assert told[-1] == (False, "the scheduler has no worker that is ready")


async def test_a_refusal_is_told_at_once() -> None:
    told: list[tuple[bool, str]] = []
    readiness = Readiness(lambda ready, reason: told.append((ready, reason)), 60, "host:1")
    readiness.follow(READY)
    readiness.follow(Link(refusal="another model"))
    assert told[-1] == (False, "another model")
