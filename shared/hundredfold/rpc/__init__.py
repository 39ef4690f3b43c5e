"""gRPC as every service uses it: one host, one way to open a channel, one kind of error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hundredfold.errors import StartError
from hundredfold.rpc.channel import open_channel
from hundredfold.rpc.errors import RequestError, abort
from hundredfold.rpc.loop import run_loop
from hundredfold.rpc.memory import keep_what_is_loaded
from hundredfold.rpc.options import channel_options, server_options
from hundredfold.rpc.turns import wait_for_turns

if TYPE_CHECKING:
    from hundredfold.rpc.control import ControlSource
    from hundredfold.rpc.facts import plugin_info
    from hundredfold.rpc.host import ServiceHost
    from hundredfold.rpc.liveness import Heartbeat

PROTOCOL_VERSION = 1
"""Version of ``hundredfold.internal``; services that disagree refuse each other."""

__all__ = [
    "PROTOCOL_VERSION",
    "ControlSource",
    "Heartbeat",
    "RequestError",
    "ServiceHost",
    "StartError",
    "abort",
    "channel_options",
    "keep_what_is_loaded",
    "open_channel",
    "plugin_info",
    "run_loop",
    "server_options",
    "wait_for_turns",
]

_HOMES = {"ControlSource": "control", "Heartbeat": "liveness", "ServiceHost": "host", "plugin_info": "facts"}


def __getattr__(name: str) -> Any:
    """Import a server's parts when they are asked for: a client has no use for them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
