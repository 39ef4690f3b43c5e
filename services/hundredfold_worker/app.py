"""The ``worker`` command: settings in, a running service out. torch is imported to run, not for help."""

from __future__ import annotations

from hundredfold.config import service_command
from hundredfold_worker.openmp import calm_openmp
from hundredfold_worker.settings import WorkerSettings


def run(settings: WorkerSettings) -> int:
    """Serve until asked to stop; returns the process's exit code."""
    calm_openmp()
    from hundredfold_worker.process import serve

    return serve(settings)


command = service_command(WorkerSettings, run)
"""``hundredfold worker``."""
