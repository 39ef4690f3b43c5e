"""Starts the gateway service."""

from __future__ import annotations

from hundredfold.config import service_command
from hundredfold.rpc import keep_what_is_loaded, run_loop, wait_for_turns
from hundredfold_gateway.service import GatewayService
from hundredfold_gateway.settings import GatewaySettings


def run(settings: GatewaySettings) -> int:
    """Serve until told to stop; the exit code."""
    keep_what_is_loaded()
    wait_for_turns()
    return run_loop(_serve(settings))


async def _serve(settings: GatewaySettings) -> int:
    return await GatewayService(settings).run()


command = service_command(GatewaySettings, run)
"""``hundredfold gateway``."""
