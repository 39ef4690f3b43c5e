"""Runs a module such that it dies with the process that started it, even if that one is killed.

``python -m hundredfold.supervisor.tether PARENT_PID MODULE [ARGUMENT...]``. On Linux the kernel sees to it
(prctl(2), PR_SET_PDEATHSIG); elsewhere a thread looks once a second whether the parent is still the parent.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_S = 1.0


def tie_to(parent: int) -> None:
    """Have this process killed when its parent ends; exit if that has happened already."""
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"cannot ask to be killed with the parent: {os.strerror(ctypes.get_errno())}")
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)


def main() -> None:
    """Tie, then become the module."""
    parent, module, *arguments = sys.argv[1:]
    tie_to(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
