"""Stop strings: found wherever they lie, held back no further than needed, at the same cost for every
token.
"""

from __future__ import annotations

import time

import pytest

from hundredfold_tokenizer.output.stops import Match, StopMatcher
from support.pace import in_time


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None, list[str]]:
    """Text, matched stop and what came out for each piece."""
    matcher = StopMatcher(stops, include_stop=include)
    out: list[str] = []
    for piece in pieces:
        found = matcher.feed(piece, armed=True)
        if isinstance(found, Match):
            out.append(found.text)
            return "".join(out), found.stop, out
        out.append(found)
    out.append(matcher.flush())
    return "".join(out), None, out


@pytest.mark.parametrize(
    "pieces", [list("ABCDEFGHIJKL"), ["ABCD", "EFGH", "IJKL"], ["ABCDEFGHIJKL"], ["ABCDEFGHI", "J"]]
)
def test_nothing_of_a_stop_string_leaks(pieces: list[str]) -> None:
    """Item 85: "ABCDEFGHIJKL" with stop "DEFGHIJ" is exactly "ABC", however the pieces lie."""
    assert run(pieces, ["DEFGHIJ"])[:2] == ("ABC", "DEFGHIJ")
    assert run(pieces, ["DEFGHIJ"], include=True)[:2] == ("ABCDEFGHIJ", "DEFGHIJ")


def test_held_text_is_flushed_at_the_end() -> None:
    """Item 85: without a match all text comes out."""
    assert run(list("ABCDEFGHI"), ["DEFGHIJ"])[:2] == ("ABCDEFGHI", None)


def test_no_more_is_held_than_a_stop_string_less_one() -> None:
    """Item 85: at most len(stop) - 1 characters wait, and only those that begin a stop string."""
    _, _, out = run(list("xxabxxabcxx"), ["abcd"])
    sent = 0
    for count, piece in enumerate(out[:-1], 1):
        sent += len(piece)
        assert count - sent <= 3
    assert out[:3] == ["x", "x", ""]  # nothing waits while nothing begins


def test_first_complete_wins_then_the_longest() -> None:
    assert run(list("abcd"), ["abcd", "bc"])[:2] == ("a", "bc")
    assert run(list("abcd"), ["b", "ab"])[:2] == ("", "ab")
    assert run(["abcd"], ["cd", "d", "bcd"])[:2] == ("a", "bcd")


def test_self_overlap() -> None:
    assert run(list("aabaabaac"), ["aabaac"])[:2] == ("aab", "aabaac")
    assert run(list("aaab"), ["aab"])[:2] == ("a", "aab")


def test_unarmed_matches_do_not_count() -> None:
    """min_tokens: what is complete too early is text, what becomes complete later counts."""
    matcher = StopMatcher(["END"], include_stop=False)
    assert matcher.feed("xEND", armed=False) == "xEND"
    assert matcher.feed("yEN", armed=False) == "y"
    found = matcher.feed("Dz", armed=True)
    assert isinstance(found, Match)
    assert (found.text, found.stop) == ("", "END")


def test_hidden_pieces_match_but_never_show() -> None:
    """Item 87: a special token that is left out of the text still completes a stop string."""
    matcher = StopMatcher(["\n<|im_end|>"], include_stop=True)
    assert matcher.feed("hi\n", armed=True) == "hi"
    found = matcher.feed("<|im_end|>", armed=True, hidden=True)
    assert isinstance(found, Match)
    assert found.text == "\n"
    other = StopMatcher(["<|im_end|>"], include_stop=False)
    assert other.feed("<|im_start|>", armed=True, hidden=True) == ""
    assert other.feed("x", armed=True) == "x"
    assert other.flush() == ""


def test_cost_does_not_grow() -> None:
    """Item 95: 32k tokens against 16 stop strings of 1k characters, held text of 1k at all times."""
    stops = [chr(ord("a") + index) * 1023 + "Z" for index in range(16)]
    matcher = StopMatcher(stops, include_stop=False)
    costs = []
    for _ in range(32):
        began = time.process_time()
        for count in range(1000):
            assert not isinstance(matcher.feed("aaaa" if count % 600 else "bcd ", armed=True), Match)
        costs.append(time.process_time() - began)
    in_time(min(costs[-8:]), 2 * max(costs[:8]), "the last thousands of tokens")
    assert sum(costs) < 10
