"""Python environments for what is measured beside us, kept in the cache: made once, and again when asked
for otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hundredfold.config import cache_dir

VENV_LIMIT_S = 180.0
INSTALL_LIMIT_S = 3600.0
"""A package without a wheel is compiled."""

_REQUIREMENTS = """
import re, sys
from importlib.metadata import requires
name, *without = sys.argv[1:]
for line in requires(name) or ():
    if "extra ==" not in line and re.match(r"[\\w.-]+", line)[0].lower() not in without:
        print(line)
"""


class EnvironmentFailed(Exception):
    """An environment could not be made; the message has pip's last words."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What an environment holds."""

    name: str
    packages: Sequence[str]
    lead: str = ""
    """A requirement installed first without its own; these follow, but for ``without``."""
    without: Sequence[str] = ()
    """Names that ``lead`` asks for and that are left out."""
    minutes: float = 3
    """What making it takes on two cores, a fast network given: told before it begins."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the compilers of packages without a wheel are told."""

    @property
    def stamp(self) -> str:
        """Changes when the environment has to be made anew."""
        made_of = f"{sys.version}\n{self.lead}\n{sorted(self.without)}\n{sorted(self.packages)}\n"
        return made_of + "".join(f"{name}={value}\n" for name, value in sorted(self.variables.items()))


def environments_dir() -> Path:
    """Where they are kept."""
    return cache_dir() / "peers"


def prepare(spec: EnvironmentSpec, say: Callable[[str], object] = lambda _: None) -> Path:
    """The interpreter of the environment; ``say`` hears what takes long. Raises EnvironmentFailed."""
    directory = environments_dir() / spec.name
    interpreter, stamp = directory / "bin" / "python", directory / "made-of.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == spec.stamp:
        return interpreter
    say(f"making an environment for {spec.name} in {directory}, once: some {spec.minutes:g} minutes")
    directory.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(directory)], VENV_LIMIT_S)
    packages = list(spec.packages)
    if spec.lead:
        _install(interpreter, ["--no-deps", spec.lead], spec.variables)
        name = spec.lead.partition("==")[0]
        listed = _run([str(interpreter), "-c", _REQUIREMENTS, name, *spec.without], VENV_LIMIT_S)
        packages += listed.splitlines()
    if packages:
        _install(interpreter, packages, spec.variables)
    stamp.write_text(spec.stamp, encoding="utf-8")
    return interpreter


def _install(interpreter: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    _run([*pip, *arguments], INSTALL_LIMIT_S, variables)


def _run(command: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None) -> str:
    """The output of a command that yields to whatever else the machine does."""
    try:
        done = subprocess.run(
            ["nice", "-n", "19", *command],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, "MAKEFLAGS": "-j1", "CMAKE_BUILD_PARALLEL_LEVEL": "1", **(variables or {})},
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{' '.join(command[:4])} took more than {limit_s:g} s") from None
    except OSError as error:
        raise EnvironmentFailed(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise EnvironmentFailed(_last_words(done.stderr or done.stdout))
    return done.stdout


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no word"])[-1][:300]
