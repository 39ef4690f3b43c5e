"""The ``scheduler`` command: settings in, a running service out."""

from __future__ import annotations

from hundredfold.config import service_command
from hundredfold.models import ModelError, fingerprint, resolve
from hundredfold.rpc import keep_what_is_loaded, run_loop
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.service import SchedulerService
from hundredfold_scheduler.settings import SchedulerSettings

log = get_logger(__name__)


def run(settings: SchedulerSettings) -> int:
    """Serve until asked to stop; returns the process's exit code."""
    expected = None
    if settings.model is not None:
        try:
            expected = fingerprint(resolve(settings.model))
        except ModelError as error:
            log.error("cannot start", service="scheduler", reason=str(error))
            return 1
    keep_what_is_loaded()
    return run_loop(_serve(settings, expected))


async def _serve(settings: SchedulerSettings, expected: str | None) -> int:
    return await SchedulerService(settings, expected).run()


command = service_command(SchedulerSettings, run)
"""``hundredfold scheduler``."""
