"""The real worker service over a given model: host and device loop on threads of a test's process."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from hundredfold.models import ModelFiles
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.service import WorkerService
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import Loaded, Started, make_engine


class RunningWorker:
    """A worker on a free port. ``device`` is the thread that in a process is the main one."""

    def __init__(self, model: LoadedModel, **settings: object) -> None:
        values = {"listen": ("127.0.0.1:0",), "block_size": 16, "max_num_seqs": 8, "num_kv_blocks": 8 * 17}
        self.settings = WorkerSettings(**values | {"warm_up": False} | settings)  # type: ignore[arg-type]
        files = ModelFiles("toy", Path("/nowhere"), "safetensors", ())
        self.started: Started = make_engine(Loaded(model, files, "f" * 64), self.settings)
        self.service = WorkerService(self.settings, {})
        self.device = threading.Thread(target=self.service.serve, args=(self.started,))

    def __enter__(self) -> RunningWorker:
        assert self.service.open()
        self.device.start()
        while self.service.host.state != "ready":  # it tidies memory first
            assert self.device.is_alive()
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.service.host.request_stop(grace_s=0.1)
        self.service.close()
        self.device.join(10)
        assert not self.device.is_alive()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.service.host.addresses[0]
