"""The process from start to end: the main thread is the device's, and every way out has an exit code."""

from __future__ import annotations

import sys

from hundredfold.errors import StartError
from hundredfold.plugin.registry import PluginError
from hundredfold.telemetry import get_logger
from hundredfold_worker.service import Interrupted, WorkerService
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import open_registries, start

log = get_logger(__name__)

_EXIT_FAILED = 1
_SWITCH_INTERVAL_S = 0.0005
"""The gRPC thread gives the interpreter back this soon when the device thread needs it; Python waits 5 ms."""


def serve(settings: WorkerSettings) -> int:
    """Load, serve until asked to stop, and return the exit code. Called on the main thread."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        registries = open_registries(settings)
        service = WorkerService(settings, registries)
    except StartError as error:
        log.error("cannot start", service="worker", reason=str(error))
        return _EXIT_FAILED
    with service.signals():
        try:
            if service.open():
                service.serve(start(settings, registries))
            return service.close()
        except Interrupted:
            return service.close()
        except StartError as error:
            return service.close(_tell(error))
        except Exception as error:
            log.exception("the device thread has failed", service="worker")
            return service.close(f"{type(error).__name__} on the device thread")


def _tell(error: StartError) -> str:
    """Log why the start ends, with the traceback where a plugin's code raised; returns the reason."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, PluginError):
        cause = cause.__cause__
    if cause is None or cause.__cause__ is None:
        log.error("cannot start", service="worker", reason=str(error))
        return str(error)
    log.exception("cannot start", raised=cause.__cause__, service="worker", reason=cause.message)
    return cause.message
