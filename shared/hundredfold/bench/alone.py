"""The worker alone, set as `make up` does: ``hundredfold bench offline`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from hundredfold.bench.stack import MAKE_UP

LIMIT_S = 900.0


class AloneError(Exception):
    """It could not be measured; the message has the command's last words."""


def alone(model: str, concurrency: int, output_len: int) -> float:
    """Output tokens a second of as many requests as run at once. Raises AloneError."""
    load = {"concurrency": concurrency, "num-requests": concurrency, "output-len": output_len, "warmup": 8}
    settings = {name.partition(".")[2].replace("_", "-"): value for name, value in MAKE_UP.items()}
    flags = [f"--{name}={value}" for name, value in {"model": model, **load, **settings}.items()]
    command = [sys.executable, "-m", "hundredfold", "bench", "offline", "--json", *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return float(json.loads(done.stdout)["output_tokens_per_s"])
    except subprocess.TimeoutExpired:
        raise AloneError(f"bench offline took more than {LIMIT_S:g} s") from None
    except (ValueError, KeyError) as error:
        words = done.stderr.strip().splitlines() or [str(error)]
        raise AloneError(f"bench offline failed: {words[-1]}") from error
