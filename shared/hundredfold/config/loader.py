"""The one loader: file < environment < flags, nothing unknown, every problem with its origin."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from hundredfold.config.errors import ConfigError, Problem, suggest
from hundredfold.config.settings import ServiceSettings
from hundredfold.config.values import describe, parts

S = TypeVar("S", bound=ServiceSettings)

SECTIONS = ("tokenizer", "scheduler", "worker", "gateway")
"""Sections that a configuration file may have: one per service, whichever of them reads it."""

_MAX_FILE_BYTES = 1024 * 1024
_MAX_VALUE_CHARS = 200

_INJECTED = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes puts into every container for a Service called ``hundredfold-scheduler`` and the like."""


def load(cls: type[S], *, file: Path | None, flags: Mapping[str, object]) -> S:
    """Settings from file, environment and flags; later ones win.

    ``flags`` maps field names to values as given; leave out those that were not. Raises ``ConfigError`` with
    every problem found: unknown keys, sections and variables, and values that do not fit.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    if file is not None:
        section = _from_file(cls, file, problems)
        values.update(section)
        origin.update(dict.fromkeys(section, f"[{cls.config_section}] in {file}"))
    prefix = env_prefix(cls)
    for name, value in _from_environment(cls, prefix, problems).items():
        values[name], origin[name] = value, prefix + name.upper()
    for name, value in flags.items():
        if name not in cls.model_fields:
            known = [flag_name(n) for n in cls.model_fields]
            problems.append(Problem(flag_name(name), "is unknown" + suggest(flag_name(name), known)))
            continue
        values[name], origin[name] = value, flag_name(name)
    try:
        settings = cls(**values)
    except ValidationError as error:
        raise ConfigError([*problems, *_explain(cls, error, origin)]) from None
    if problems:
        raise ConfigError(problems)
    return settings


def env_prefix(cls: type[ServiceSettings]) -> str:
    """Such as ``HUNDREDFOLD_SCHEDULER_``."""
    return f"HUNDREDFOLD_{cls.config_section.upper()}_"


def flag_name(field: str) -> str:
    """Such as ``--max-num-seqs``."""
    return "--" + field.replace("_", "-")


def _from_file(cls: type[ServiceSettings], file: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError([Problem(str(file), f"is over {_MAX_FILE_BYTES} bytes")])
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Problem(str(file), f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([Problem(str(file), f"is not TOML: {error}")]) from None
    sections = sorted({*SECTIONS, cls.config_section})
    for name, section in content.items():
        if name not in sections:
            hint = suggest(name, sections) or f"; sections are {', '.join(sections)}"
            problems.append(Problem(str(file), f"section [{name}] is unknown{hint}"))
        elif not isinstance(section, dict):
            problems.append(Problem(str(file), f"'{name}' is a section; write [{name}]"))
    own = content.get(cls.config_section, {})
    if not isinstance(own, dict):
        return {}
    for name in own:
        if name not in cls.model_fields:
            where = f"[{cls.config_section}] in {file}"
            problems.append(Problem(where, f"key '{name}' is unknown" + suggest(name, cls.model_fields)))
    return {name: value for name, value in own.items() if name in cls.model_fields}


def _from_environment(cls: type[ServiceSettings], prefix: str, problems: list[Problem]) -> dict[str, Any]:
    known = {prefix + name.upper(): name for name in cls.model_fields}
    for variable in os.environ:
        unknown = variable.upper().startswith(prefix) and variable.upper() not in known
        if unknown and not _INJECTED.fullmatch(variable.upper().removeprefix(prefix)):
            name = variable.upper().removeprefix(prefix)  # the prefix alone would make all of them alike
            near = suggest(name, (k.removeprefix(prefix) for k in known))
            problems.append(Problem(variable, "is an unknown variable" + near.replace("'", f"'{prefix}", 1)))
    found = EnvSettingsSource(cls, env_prefix=prefix)()
    return {known.get(key.upper(), key): value for key, value in found.items()}


def _explain(cls: type[ServiceSettings], error: ValidationError, origin: Mapping[str, str]) -> list[Problem]:
    problems = []
    for item in error.errors(include_url=False):
        field = str(item["loc"][0]) if item["loc"] else ""
        if item["type"] == "missing":
            ways = f"{flag_name(field)}, {env_prefix(cls)}{field.upper()} or [{cls.config_section}] {field}"
            problems.append(Problem(field, f"is required; set {ways}"))
            continue
        message = item["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if not field:
            problems.append(Problem(cls.config_section, message))
            continue
        problems.append(
            Problem(origin.get(field, field), f"{field} = {_shown(cls, field, item['input'])}: {message}")
        )
    return problems


def _shown(cls: type[ServiceSettings], field: str, value: object) -> str:
    if SecretStr in parts(cls.model_fields[field].annotation):
        return "**********"
    text = describe(value)
    return text if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "…"
