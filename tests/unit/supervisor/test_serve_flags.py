"""Flags of `hundredfold serve` that are refused before anything is started."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hundredfold.cli.serve import command

MISSING = "no-such-model"
"""So that nothing starts whatever becomes of the other flags."""


@pytest.mark.parametrize("flag", ["--http", "--listen", "--scheduler-listen", "--worker-listen"])
@pytest.mark.parametrize("value", ["", " , "])
def test_a_flag_without_an_address_is_not_one_that_was_not_given(flag: str, value: str) -> None:
    result = CliRunner().invoke(command, ["--model", MISSING, flag, value])
    assert result.exit_code == 2
    assert f"{flag}: names no address" in result.stderr


def test_every_flag_without_an_address_is_named() -> None:
    result = CliRunner().invoke(command, ["--model", MISSING, "--listen", "", "--worker-listen", ""])
    assert "  --listen: names no address\n  --worker-listen: names no address\n" in result.stderr


def test_a_model_without_a_name_is_not_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNDREDFOLD_WORKER_MODEL", MISSING)
    result = CliRunner().invoke(command, ["--model", ""])
    assert result.exit_code == 2
    assert "'' is no name of a model" in result.stderr
