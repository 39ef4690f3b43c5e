"""What every service can say of itself: version, incarnation, uptime, memory, libraries."""

from __future__ import annotations

import os
import platform
import resource
import secrets
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import psutil
from google.protobuf.duration_pb2 import Duration

from hundredfold.plugin.records import PluginRecord
from hundredfold.v1 import control_pb2

_LIBRARIES = ("grpcio", "protobuf")
_MAX_ERROR_CHARS = 2000


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts that stay while the process lives."""

    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    """Changes with each start."""
    started: float = field(default_factory=time.monotonic)

    def describe(
        self, service: str, state: str, settings: dict[str, str], libraries: Iterable[str] = ()
    ) -> control_pb2.ServiceInfo:
        """A ``ServiceInfo`` to which the room adds model, runtime and plugins."""
        uptime = Duration()
        uptime.FromMilliseconds(round((time.monotonic() - self.started) * 1000))
        versions = {name: _version(name) for name in (*_LIBRARIES, *libraries)}
        return control_pb2.ServiceInfo(
            service=service,
            version=_version("hundredfold"),
            incarnation=self.incarnation,
            uptime=uptime,
            state=state,
            settings=settings,
            libraries={"python": platform.python_version(), **{k: v for k, v in versions.items() if v}},
            resident_bytes=psutil.Process(os.getpid()).memory_info().rss,
            peak_resident_bytes=_peak_bytes(),
        )


def plugin_info(record: PluginRecord) -> control_pb2.PluginInfo:
    """A registry's record as the contract's message."""
    return control_pb2.PluginInfo(
        group=record.group,
        name=record.name,
        distribution=record.distribution,
        api_version=record.api_version,
        state=record.state.value,
        error=record.error[:_MAX_ERROR_CHARS],
        description=record.description,
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
