"""The ``worker`` command: settings in, a running service out. The main thread is the device's."""

from __future__ import annotations

import sys

from hundredfold.config import service_command
from hundredfold.errors import StartError
from hundredfold.telemetry import get_logger
from hundredfold_worker.service import Interrupted, WorkerService
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import open_registries, start

log = get_logger(__name__)

_EXIT_FAILED = 1
_SWITCH_INTERVAL_S = 0.0005
"""The gRPC thread gives the interpreter back this soon when the device thread needs it; Python waits 5 ms."""


def run(settings: WorkerSettings) -> int:
    """Serve until asked to stop; returns the process's exit code."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        registries = open_registries(settings)
        service = WorkerService(settings, registries)
    except StartError as error:
        log.error("cannot start", service="worker", reason=str(error))
        return _EXIT_FAILED
    with service.signals():
        try:
            if not service.open():
                return service.close()
            started = start(settings, registries)
            service.serve(started)
        except Interrupted:
            return service.close()
        except StartError as error:
            log.error("cannot start", service="worker", reason=str(error))
            return service.close(str(error))
        except Exception as error:
            log.exception("the device thread has failed", service="worker")
            return service.close(f"{type(error).__name__} on the device thread")
        return service.close()


command = service_command(WorkerSettings, run)
"""``hundredfold worker``."""
