"""Looks at the queue: none is missed that could come to something, and nobody holds up more than needed."""

from __future__ import annotations

from dataclasses import replace

from hundredfold_scheduler.core.beam_search import BeamTerms
from support.scheduler_harness import SMALL, Harness


def prompt(seed: int, length: int = 10) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def test_a_free_seat_is_a_reason_to_look_again() -> None:
    """Two beams wait for two seats. When a seat gets free, another request has grown by as many blocks as
    came free with it: there is no more memory than before, but there are the seats.
    """
    harness = Harness(replace(SMALL, max_num_seqs=3))
    long = harness.submit(0, prompt(0), 200)
    short = harness.submit(1, prompt(1), 60)
    harness.turn()
    beams = harness.submit(2, prompt(2), 4, beams=BeamTerms(2, 1.0, early_stopping=False))
    while not short.ended:
        harness.turn()
    for _ in range(12):
        harness.turn()
    assert beams.ended
    assert not long.ended
    harness.run()
    harness.assert_empty()
