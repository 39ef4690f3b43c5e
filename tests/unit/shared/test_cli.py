"""The command line finds commands lazily and says what is wrong in words."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from hundredfold.cli.main import COMMANDS, cli
from support.repo import ROOT


def hundredfold(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from hundredfold.cli.main import run; run()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['hundredfold', '--help']\nfrom hundredfold.cli.main import run\n"
        "try:\n    run()\nfinally:\n"
        "    heavy = {'torch', 'grpc', 'pydantic', 'numpy', 'tokenizers', 'rich', 'opentelemetry'}\n"
        "    print('imported:', sorted(heavy & set(sys.modules)))\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "imported: []" in output
    for name, known in COMMANDS.items():
        assert name in output
        assert known.help in output
    assert "From hundredfold" not in output  # a command of ours says what it does


def test_every_command_of_ours_is_there() -> None:
    for known in COMMANDS.values():
        assert known.module is None or find_spec(known.module) is not None, known.module


@pytest.mark.parametrize(
    "asked",
    [
        ("bench", "bottleneck", "--seconds"),
        ("bench", "ladder", "--minutes"),
        ("bench", "tune", "--minutes"),
        ("estimate", "smollm2-135m", "--memory-utilization"),
        ("generate", "text", "--timeout"),
    ],
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_no_finite_number_is_refused(asked: tuple[str, ...], value: str) -> None:
    refused = CliRunner().invoke(cli, [*asked, value])
    assert refused.exit_code == 2
    assert asked[-1] in refused.output
    assert "Error: Invalid value" in refused.output


def test_no_option_has_clicks_range_of_floats() -> None:
    """It lets NaN pass every bound."""
    found = [
        path.name
        for room in ("shared", "services", "plugins")
        for path in (ROOT / room).rglob("*.py")
        if "click.FloatRange" in path.read_text() and path.name != "numbers.py"
    ]
    assert found == []


def test_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == "hundredfold, version 0.1.0\n"


def test_unknown_commands_are_refused() -> None:
    result = CliRunner().invoke(cli, ["wrker"])
    assert result.exit_code == 2
    assert "wrker" in result.output


def install(path: Path, distribution: str, entry: str, source: str) -> None:
    info = path / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hundredfold.commands]\n{entry} = {distribution}_cli:command\n")
    (path / f"{distribution}_cli.py").write_text(source)


CLICK = """
import click

@click.command()
@click.option('--n', type=int)
def command(n):
    print('n is', n)
"""

TYPER = """
import typer

command = typer.Typer()

@command.command()
def one(n: int = 3, loud: bool = False) -> None:
    print("typer", n, loud)
"""


def test_a_strangers_command_is_found_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "acmeone", "tune", CLICK)
    install(tmp_path, "acmetwo", "shout", TYPER)
    listing = CliRunner().invoke(cli, ["--help"]).output
    assert "From acmeone 1.0." in listing
    assert "acmeone_cli" not in sys.modules
    assert CliRunner().invoke(cli, ["tune", "--n", "4"]).output == "n is 4\n"
    assert CliRunner().invoke(cli, ["shout", "--n", "5", "--loud"]).output == "typer 5 True\n"
    assert "--loud" in CliRunner().invoke(cli, ["shout", "--help"]).output
    assert CliRunner().invoke(cli, ["shout", "--quiet"]).exit_code == 2


def test_two_packages_with_one_command_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "acmethree", "worker", CLICK)
    result = CliRunner().invoke(cli, ["worker", "--help"])
    assert result.exit_code == 2
    assert "acmethree 1.0 and hundredfold 0.1.0" in result.output


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "acmefour", "need", "import package_that_nobody_has\n")
    result = CliRunner().invoke(cli, ["need"])
    assert result.exit_code == 2
    assert "'need' needs the package 'package_that_nobody_has'" in result.output


def test_plugins_lists_what_was_found_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acmebad-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acmebad\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[hundredfold.attention]\n[red]bad = acmebad_module:Plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = hundredfold("plugins", "--json")
    assert answer.returncode == 0, answer.stderr
    records = {(r["group"], r["name"]): r for r in json.loads(answer.stdout)}
    bad = records["hundredfold.attention", "[red]bad"]
    assert (bad["state"], bad["distribution"]) == ("failed", "acmebad 2.0")
    assert "No module named 'acmebad_module'" in bad["error"]
    assert records["hundredfold.kv_cache", "bf16"]["state"] == "loaded"
    monkeypatch.setenv("COLUMNS", "200")
    table = hundredfold("plugins").stdout
    assert "acmebad 2.0" in table
    assert "[red]bad" in table
