"""From what a user asked for to the services to run: addresses, flags, threads."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hundredfold.config import ConfigError, Problem
from hundredfold.supervisor.cores import usable_cores
from hundredfold.supervisor.spec import ChildSpec

SERVICES = ("gateway", "tokenizer", "scheduler", "worker")
"""In the order in which they are stopped: the doors first."""

LISTEN = {
    "gateway": "127.0.0.1:8000",
    "tokenizer": "127.0.0.1:50051",
    "scheduler": "127.0.0.1:50052",
    "worker": "127.0.0.1:50053",
}
NEIGHBOUR = {
    "gateway": ("door", "tokenizer"),
    "tokenizer": ("scheduler", "scheduler"),
    "scheduler": ("worker", "worker"),
}
"""The setting by which a service knows the next one, and that one."""

DOORS = ("gateway", "tokenizer")
"""Those that clients talk to; only they have anything of their own to finish."""

_WITH_MODEL = SERVICES[1:]
_CONTROLLED_APART = ("gateway",)
"""Services that listen with another protocol than gRPC: health and control have an address of their own."""
DEFAULT_DRAIN_GRACE_S = 30.0
THREADS = "OMP_NUM_THREADS"
_STOP_MARGIN_S = 5.0

SHARED_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "model": _WITH_MODEL,
    "log_level": SERVICES,
    "log_format": SERVICES,
    "drain_grace_s": SERVICES,
    "max_model_len": ("worker",),
    "max_num_seqs": ("worker",),
    "max_num_batched_tokens": ("worker",),
    "block_size": ("worker",),
    "memory_utilization": ("worker",),
    "dtype": ("worker",),
    "kv_cache_dtype": ("worker",),
    "num_threads": ("worker",),
}
"""Settings with a flag of their own, and the services that get them."""


@dataclass(frozen=True, slots=True)
class HouseOptions:
    """What the user asked for.

    Attributes:
        config: Configuration file for every service.
        listen: Address by service, where one was named.
        shared: Values by name of SHARED_SETTINGS.
        extra: Settings of single services, by (service, setting).
        without: Services that are left out.
    """

    config: Path | None = None
    listen: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[tuple[str, str], str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()


def parse_extra(assignments: Sequence[str]) -> dict[tuple[str, str], str]:
    """Read ``SERVICE.SETTING=VALUE`` items.

    Raises:
        ConfigError: An item is none, or names an unknown service.
    """
    extra: dict[tuple[str, str], str] = {}
    for item in assignments:
        target, equals, value = item.partition("=")
        service, dot, setting = target.partition(".")
        if not equals or not dot or not setting.isidentifier() or service not in SERVICES:
            problem = f"'{item}' is not SERVICE.SETTING=VALUE with SERVICE one of {', '.join(SERVICES)}"
            raise ConfigError([Problem("--set", problem)])
        extra[service, setting] = value
    return extra


class House:
    """The services of one machine; looks into file and environment where these have a say."""

    def __init__(self, options: HouseOptions, runtime_dir: Path) -> None:
        """Work out addresses and flags; nothing is started.

        Args:
            options: What was asked for.
            runtime_dir: A private directory for the sockets between the services.

        Raises:
            ConfigError: The configuration file cannot be read.
        """
        self._options = options
        self._runtime_dir = runtime_dir
        self._file = _read_file(options.config)
        self.services = tuple(name for name in SERVICES if name not in options.without)
        """In the order in which they are stopped."""
        self.listen = {
            name: options.listen.get(name) or self._configured(name, "listen") or LISTEN[name]
            for name in self.services
        }
        """Public addresses by service, comma-separated."""

    def socket(self, service: str) -> str:
        """The service's address inside the house."""
        return f"unix:{self._runtime_dir / service}.sock"

    def model(self, default: str) -> str:
        """The model to serve: asked for, configured, or ``default``."""
        asked = self._options.shared.get("model")
        return asked or next(filter(None, (self._configured(name, "model") for name in _WITH_MODEL)), default)

    def specs(self, model: str) -> list[ChildSpec]:
        """The services in the order in which they are stopped, the doors first."""
        return [self._spec(name, model) for name in self.services]

    def _spec(self, name: str, model: str) -> ChildSpec:
        if name in _CONTROLLED_APART:
            given = {"listen": self.listen[name], "control_listen": self.socket(name)}
        else:
            given = {"listen": f"{self.listen[name]},{self.socket(name)}"}
        if name in _WITH_MODEL:
            given["model"] = model
        if name in NEIGHBOUR:
            setting, neighbour = NEIGHBOUR[name]
            given[setting] = self.socket(neighbour)
        shared = self._options.shared.items()
        given |= {
            setting: value
            for setting, value in shared
            if name in SHARED_SETTINGS[setting] and setting != "model"
        }
        given |= {
            setting: value for (service, setting), value in self._options.extra.items() if service == name
        }
        variables = thread_variables(name)
        if name == "worker" and THREADS in variables and not self._configured(name, "num_threads"):
            given.setdefault("num_threads", variables[THREADS])
        tether = ("-m", "hundredfold.supervisor.tether", str(os.getpid()), f"hundredfold_{name}")
        config = ("--config", str(self._options.config)) if self._options.config else ()
        flags = (part for setting, value in given.items() for part in _flag(setting, value))
        return ChildSpec(
            name=name,
            command=(sys.executable, *tether, *config, *flags),
            address=self.socket(name),
            environment=variables,
            stop_s=self._grace(name, given) + _STOP_MARGIN_S,
        )

    def _grace(self, name: str, given: Mapping[str, str]) -> float:
        """How long the service may drain; only the doors have anything of their own to wait for."""
        text = given.get("drain_grace_s") or self._configured(name, "drain_grace_s")
        try:
            grace = float(text) if text else DEFAULT_DRAIN_GRACE_S
        except ValueError:
            grace = DEFAULT_DRAIN_GRACE_S  # the service itself says what is wrong with it
        return grace if name in DOORS else min(grace, _STOP_MARGIN_S)

    def _configured(self, service: str, setting: str) -> str | None:
        """What environment or file say, environment first."""
        variable = os.environ.get(f"HUNDREDFOLD_{service}_{setting}".upper())
        if variable:
            return variable
        section = self._file.get(service, {})
        value = section.get(setting) if isinstance(section, dict) else None
        if isinstance(value, list):
            return ",".join(map(str, value)) or None
        return None if value is None else str(value)


def thread_variables(service: str) -> dict[str, str]:
    """Sizes of the thread pools, so that those of all services together fit the cores.

    The worker computes; it gets every core, but one on machines that can spare it for the others, whose pools
    get one thread each. What the user has set is left alone.
    """
    cores = usable_cores()
    threads = (cores if cores < 4 else cores - 1) if service == "worker" else 1
    wanted = {THREADS: threads, "RAYON_NUM_THREADS": 1}
    variables = {name: str(value) for name, value in wanted.items() if name not in os.environ}
    return {"PYTHONUNBUFFERED": "1", **variables}


def _flag(setting: str, value: str) -> tuple[str, ...]:
    name = setting.replace("_", "-")
    if value in ("true", "false"):  # a truth value is a switch without an argument
        return (f"--{name}" if value == "true" else f"--no-{name}",)
    return (f"--{name}={value}",)


def _read_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Problem(str(config), f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([Problem(str(config), f"is not TOML: {error}")]) from None
