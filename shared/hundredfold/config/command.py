"""A service's command line: one flag per settings field, from the field's type, default and docstring."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic.fields import FieldInfo

from hundredfold.config.errors import ConfigError
from hundredfold.config.loader import flag_name, load
from hundredfold.config.settings import ServiceSettings
from hundredfold.config.values import describe, is_bool, metavar

S = TypeVar("S", bound=ServiceSettings)

EXIT_BAD_CONFIG = 2
"""Exit code for a configuration that cannot be used, the same as for an unknown flag."""


def service_command(cls: type[S], run: Callable[[S], int]) -> click.Command:
    """The command that loads settings of ``cls``, sets up telemetry and exits with what ``run`` returns.

    A bad configuration is printed, every problem on a line, and ends with exit code 2.
    """

    def callback(config: Path | None, **values: object) -> None:
        flags = {name: value for name, value in values.items() if value is not None}
        try:
            settings = load(cls, file=config, flags=flags)
        except ConfigError as error:
            click.echo(f"hundredfold {cls.config_section}: {error}", err=True)
            sys.exit(EXIT_BAD_CONFIG)
        from hundredfold import telemetry

        telemetry.configure_logging(settings)
        sys.exit(run(settings))

    return click.Command(
        name=cls.config_section,
        callback=callback,
        params=[
            _config_option(cls),
            *(_option(cls, name, field) for name, field in cls.model_fields.items()),
        ],
        help=cls.__doc__,
        context_settings={"show_default": False, "max_content_width": 110},
    )


def _config_option(cls: type[ServiceSettings]) -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"TOML file; its section [{cls.config_section}] is read. Variables and flags win over it.",
    )


def _option(cls: type[ServiceSettings], name: str, field: FieldInfo) -> click.Option:
    described = f"{_help(cls, name)} [{_default(field)}]".strip()
    if is_bool(field.annotation):
        switch = flag_name(name)
        return click.Option([f"{switch}/--no-{switch[2:]}", name], default=None, help=described)
    # Text stays text here: pydantic is the one that reads and refuses it, whatever it came from.
    return click.Option([flag_name(name), name], type=str, metavar=metavar(field.annotation), help=described)


def _help(cls: type[ServiceSettings], name: str) -> str:
    """The field's docstring, or that of the field it overrides."""
    for base in cls.__mro__:
        field = base.model_fields.get(name) if issubclass(base, ServiceSettings) else None
        if field is not None and field.description:
            return " ".join(field.description.split())
    return ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    return f"default: {describe(value)}"
