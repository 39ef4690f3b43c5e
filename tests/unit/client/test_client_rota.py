"""Which server is asked next: each in turn, those that were away later."""

from __future__ import annotations

import pytest

from hundredfold.client.rota import REST_S, Rota, addresses


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_servers_take_turns():
    rota = Rota(["a", "b", "c"])
    assert [rota.pick() for _ in range(7)] == ["a", "b", "c", "a", "b", "c", "a"]


def test_a_server_that_is_away_is_passed_over_for_a_while():
    clock = Clock()
    rota = Rota(["a", "b"], clock)
    rota.away("a")
    assert {rota.pick() for _ in range(4)} == {"b"}
    clock.now += REST_S
    assert {rota.pick() for _ in range(4)} == {"a", "b"}


def test_when_all_are_away_the_longest_resting_is_asked():
    clock = Clock()
    rota = Rota(["a", "b"], clock)
    rota.away("b")
    clock.now += 1
    rota.away("a")
    assert {rota.pick() for _ in range(4)} == {"b"}


def test_addresses_are_separated_by_commas():
    assert addresses("h:1, unix:/s ,h:1,") == ("h:1", "unix:/s")
    with pytest.raises(ValueError, match="names no server"):
        addresses(" , ")
