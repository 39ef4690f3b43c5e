"""A service's threads wait for their turn; others of the same process do not."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from hundredfold.rpc import wait_for_turns

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's classes of threads")


def classes_of(*steps: str) -> list[int]:
    """Classes of a new thread and of one that it starts, after these steps."""
    found: list[int] = []

    def note() -> None:
        found.append(os.sched_getscheduler(0))

    def run() -> None:
        if "idle class" in steps:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        if "wait" in steps:
            wait_for_turns()
        note()
        child = threading.Thread(target=note)
        child.start()
        child.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def test_a_thread_and_those_that_it_starts() -> None:
    before = os.sched_getscheduler(0)
    assert classes_of("wait") == [os.SCHED_BATCH] * 2
    assert os.sched_getscheduler(0) == before


def test_a_class_that_was_chosen_stays() -> None:
    assert classes_of("idle class", "wait") == [os.SCHED_IDLE] * 2
