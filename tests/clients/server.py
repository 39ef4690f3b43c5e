"""`hundredfold serve` of the default model on free ports, in fp32, for the clients to talk to."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.environments import BUILD, Failed
from hundredfold.models import DEFAULT_MODEL, pull
from support.ports import free_port
from support.repo import ROOT

READY_S = 300
STOP_S = 60


@dataclass(frozen=True)
class Server:
    """Where it is.

    Attributes:
        model: What clients call the model.
        http: HOST:PORT of the gateway.
        door: HOST:PORT of the gRPC door.
    """

    model: str
    http: str
    door: str

    @property
    def base_url(self) -> str:
        """As OpenAI's clients want it."""
        return f"http://{self.http}/v1"


class Starting:
    """A server on its way up."""

    def __init__(self, server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
        self._server = server
        self._process = process
        self._log = log

    def ready(self) -> Server:
        """Wait until it answers. Raises ``Failed`` with the end of its log."""
        deadline = time.monotonic() + READY_S
        while "is ready after" not in (text := self._log.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server is not ready\n{text[-3000:]}")
            time.sleep(0.2)
        return self._server


@contextlib.contextmanager
def serving() -> Iterator[Starting]:
    """Start it, and stop it at the end. Raises ``Failed`` when it does not stop well."""
    pull(DEFAULT_MODEL)
    BUILD.mkdir(parents=True, exist_ok=True)
    server = Server(DEFAULT_MODEL, f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    log = BUILD / "serve.log"
    command = [
        *(ROOT / ".venv" / "bin" / "hundredfold", "serve", "--dtype", "fp32"),
        *("--http", server.http, "--listen", server.door),
        *("--scheduler-listen", f"127.0.0.1:{free_port()}", "--worker-listen", f"127.0.0.1:{free_port()}"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        yield Starting(server, process, log)
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_S) != 0:
            raise Failed(f"the server ended with {process.returncode}\n{log.read_text()[-3000:]}")
    except subprocess.TimeoutExpired:
        raise Failed(f"the server did not stop within {STOP_S} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
