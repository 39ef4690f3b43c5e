"""Each room has a page that says what lives there, and the tools know every room."""

from __future__ import annotations

import configparser
import tomllib

import pytest

from support.repo import ROOT, packages

ROOMS = [
    "proto",
    "shared",
    "deploy",
    "tests",
    "plugins",
    *(f"services/{name}" for name in packages("services")),
    *(f"plugins/{name}" for name in packages("plugins")),
]

ONE_SCREEN = 80
"""Lines. Tables count like text."""

TUTORIALS = {"plugins": 400}
"""Pages that lead through code, and their lines."""


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_a_readme_of_one_screen(room: str):
    readme = ROOT / room / "README.md"
    assert readme.is_file(), f"{room} has no README.md"
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    most = TUTORIALS.get(room, ONE_SCREEN)
    assert len(lines) <= most, f"{room}/README.md has {len(lines)} lines, the limit is {most}"


def test_every_package_is_in_the_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["scikit-build"]["wheel"]["packages"]
    found = [
        "shared/hundredfold",
        *(f"{room}/{p}" for room in ("services", "plugins") for p in packages(room)),
    ]
    assert sorted(listed) == sorted(found)


def test_every_package_is_held_by_the_import_contracts():
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    services, plugins = packages("services"), packages("plugins")

    def listed(contract: str, option: str) -> list[str]:
        return sorted(config[f"importlinter:contract:{contract}"][option].split())

    assert sorted(config["importlinter"]["root_packages"].split()) == sorted(
        ["hundredfold", *services, *plugins]
    )
    assert listed("shared", "forbidden_modules") == sorted([*services, *plugins])
    assert listed("services", "modules") == services
    assert listed("services-plugins", "source_modules") == services
    assert listed("services-plugins", "forbidden_modules") == plugins
    assert listed("plugins", "modules") == plugins
    assert listed("plugins-house", "source_modules") == plugins
    assert listed("plugins-house", "forbidden_modules") == sorted(["hundredfold.*", *services])
