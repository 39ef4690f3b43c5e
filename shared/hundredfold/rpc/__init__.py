"""gRPC as every service uses it: one host, one way to open a channel, one kind of error."""

from hundredfold.errors import StartError
from hundredfold.rpc.channel import open_channel
from hundredfold.rpc.control import ControlSource
from hundredfold.rpc.errors import RequestError, abort
from hundredfold.rpc.facts import plugin_info
from hundredfold.rpc.host import ServiceHost
from hundredfold.rpc.liveness import Heartbeat
from hundredfold.rpc.loop import run_loop
from hundredfold.rpc.options import channel_options, server_options

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
    "open_channel",
    "plugin_info",
    "run_loop",
    "server_options",
]
