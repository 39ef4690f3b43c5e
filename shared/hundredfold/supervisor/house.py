"""From what a user asked for to the services to run: addresses, flags, threads."""

from __future__ import annotations

import os
import re
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
REPLICATED = ("tokenizer", "worker")
"""Services that there may be several of."""
_PORTS_APART = 10
"""From one replica's port to the next one's."""
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
    "quantization": ("worker",),
    "activations": ("worker",),
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
        replicas: How many of a service there are, by name of REPLICATED; one where it is not named.
    """

    config: Path | None = None
    listen: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[tuple[str, str], str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    replicas: Mapping[str, int] = field(default_factory=dict)


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


def as_assigned(lines: Sequence[str], extra: Mapping[tuple[str, str], str]) -> list[str]:
    """What to read beside a service's last lines: which flag there is which ``--set`` here."""
    text = "\n".join(lines)
    notes = []
    for (service, setting), value in extra.items():
        flag = _flag(setting, value)[0].partition("=")[0]
        if re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text):
            notes.append(f"{flag} is --set {service}.{setting}")
    return notes


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
        self.replicas = {
            service: [replica_name(service, n + 1) for n in range(options.replicas.get(service, 1))]
            for service in SERVICES
            if service not in options.without
        }
        """Names of each service's processes, in the order in which the services are stopped."""
        self.listen = {
            name: self._listen(service, number)
            for service, names in self.replicas.items()
            for number, name in enumerate(names, 1)
        }
        """Public addresses by process, comma-separated."""

    def socket(self, name: str) -> str:
        """A process's address inside the house."""
        return f"unix:{self._runtime_dir / name}.sock"

    def sockets(self, service: str) -> str:
        """The addresses of all of a service's processes, comma-separated."""
        return ",".join(self.socket(name) for name in self.replicas[service])

    def model(self, default: str) -> str:
        """The model to serve: asked for, configured, or ``default``."""
        asked = self._options.shared.get("model")
        if asked is not None:
            return asked
        return next(filter(None, (self._configured(name, "model") for name in _WITH_MODEL)), default)

    def specs(self, model: str) -> list[ChildSpec]:
        """The services in the order in which they are stopped, the doors first."""
        return [
            self._spec(service, name, model) for service, names in self.replicas.items() for name in names
        ]

    def _spec(self, service: str, name: str, model: str) -> ChildSpec:
        replicas = len(self.replicas[service])
        if service in _CONTROLLED_APART:
            given = {"listen": self.listen[name], "control_listen": self.socket(name)}
        else:
            given = {"listen": f"{self.listen[name]},{self.socket(name)}"}
        if service in _WITH_MODEL:
            given["model"] = model
        if service in NEIGHBOUR:
            setting, neighbour = NEIGHBOUR[service]
            given[setting] = self.sockets(neighbour)
        if service == "worker" and replicas > 1:
            given["workers_here"] = str(replicas)
        shared = self._options.shared.items()
        given |= {
            setting: value
            for setting, value in shared
            if service in SHARED_SETTINGS[setting] and setting != "model"
        }
        given |= {
            setting: value for (target, setting), value in self._options.extra.items() if target == service
        }
        variables = thread_variables(service, replicas)
        if service == "worker" and THREADS in variables and not self._configured(service, "num_threads"):
            given.setdefault("num_threads", variables[THREADS])
        tether = ("-m", "hundredfold.supervisor.tether", str(os.getpid()), f"hundredfold_{service}")
        config = ("--config", str(self._options.config)) if self._options.config else ()
        flags = (part for setting, value in given.items() for part in _flag(setting, value))
        return ChildSpec(
            name=name,
            command=(sys.executable, *tether, *config, *flags),
            address=self.socket(name),
            environment=variables,
            stop_s=self._grace(service, given) + _STOP_MARGIN_S,
            replicated=replicas > 1,
        )

    def _listen(self, service: str, number: int) -> str:
        first = self._options.listen.get(service) or self._configured(service, "listen") or LISTEN[service]
        return ",".join(replica_address(address.strip(), number) for address in first.split(","))

    def _grace(self, service: str, given: Mapping[str, str]) -> float:
        """How long the service may drain; only the doors have anything of their own to wait for."""
        text = given.get("drain_grace_s") or self._configured(service, "drain_grace_s")
        try:
            grace = float(text) if text else DEFAULT_DRAIN_GRACE_S
        except ValueError:
            grace = DEFAULT_DRAIN_GRACE_S  # the service itself says what is wrong with it
        return grace if service in DOORS else min(grace, _STOP_MARGIN_S)

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


def replica_name(service: str, number: int) -> str:
    """What the first, second and so on process of a service is called."""
    return service if number == 1 else f"{service}-{number}"


def replica_address(first: str, number: int) -> str:
    """Where a replica listens, by where the first one does: 127.0.0.1:50061 after 127.0.0.1:50051."""
    if number == 1:
        return first
    if first.startswith("unix:"):
        return f"{first}-{number}"
    host, _, port = first.rpartition(":")
    if not port.isdigit() or not int(port):  # any free port, or something that the service itself refuses
        return first
    return f"{host}:{int(port) + _PORTS_APART * (number - 1)}"


def thread_variables(service: str, replicas: int = 1) -> dict[str, str]:
    """Sizes of the thread pools, so that those of all services together fit the cores.

    The workers compute; they share every core, but one on machines that can spare it for the others, whose
    pools get one thread each. What the user has set is left alone.
    """
    cores = usable_cores()
    shared = cores if cores < 4 else cores - 1
    threads = max(1, shared // replicas) if service == "worker" else 1
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
