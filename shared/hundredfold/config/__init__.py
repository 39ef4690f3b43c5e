"""Settings of a service: one frozen model, one loader (file < environment < flags), one command."""

from hundredfold.config.command import service_command
from hundredfold.config.errors import ConfigError, Problem
from hundredfold.config.loader import SECTIONS, load
from hundredfold.config.paths import cache_dir
from hundredfold.config.settings import MIB, ServiceSettings

__all__ = [
    "MIB",
    "SECTIONS",
    "ConfigError",
    "Problem",
    "ServiceSettings",
    "cache_dir",
    "load",
    "service_command",
]
