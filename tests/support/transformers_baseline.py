"""Measures the naive way: transformers' `generate`, one request, on the default model's dequantized weights.

The bar that `hundredfold bench serve` is held against; for a quiet machine. Prints one JSON object:

    PYTHONPATH=tests python -m support.transformers_baseline [--repeats N] [--threads N] [--limit-s S]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from hundredfold.models import DEFAULT_MODEL, pull
from support.reference import load_reference

INPUT_LEN, OUTPUT_LEN, WARMUP_LEN = 64, 128, 8
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Run:
    """One generation. ``cpu_share`` near 1: the threads had their cores; much less: the machine was busy."""

    tokens_per_s: float
    tokens: int
    cpu_share: float


def measure(model: Any, prompt: Any, repeats: int, limit_s: float) -> list[Run]:
    """Generate greedily, prompt included in the time; the runs, fastest first."""
    import torch

    runs = []
    _generate(model, prompt, WARMUP_LEN, limit_s)
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = _generate(model, prompt, OUTPUT_LEN, limit_s)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        runs.append(Run(round(tokens / wall, 2), tokens, round(cpu / wall / torch.get_num_threads(), 2)))
    return sorted(runs, key=lambda run: run.tokens_per_s, reverse=True)


def _generate(model: Any, prompt: Any, length: int, limit_s: float) -> int:
    """Tokens generated: ``length``, fewer when the time was up."""
    import torch

    with torch.inference_mode():
        ids = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            max_time=limit_s,
            pad_token_id=0,
        )
    return int(ids.shape[1] - prompt.shape[1])


def main() -> None:
    """Measure each type and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=2, help="runs per type; the best one counts")
    parser.add_argument("--threads", type=int, help="torch threads; its own choice when unset")
    parser.add_argument(
        "--limit-s", type=float, default=15.0, help="a run is cut off after this many seconds"
    )
    options = parser.parse_args()

    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    model = load_reference(str(pull(DEFAULT_MODEL).weights[0])).model
    drawn = torch.Generator().manual_seed(0)
    prompt = torch.randint(1000, 40_000, (1, INPUT_LEN), generator=drawn)
    found = {}
    for name, dtype in DTYPES.items():
        runs = measure(model.to(getattr(torch, dtype)), prompt, options.repeats, options.limit_s)
        found[name] = {"tokens_per_s": runs[0].tokens_per_s, "runs": [asdict(run) for run in runs]}
    print(
        json.dumps(
            {
                "what": "transformers generate, one request",
                "model": DEFAULT_MODEL,
                "input_len": INPUT_LEN,
                "output_len": OUTPUT_LEN,
                **found,
                "threads": torch.get_num_threads(),
                "bf16_hardware": bool(torch.backends.mkldnn.is_available())
                and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
                "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
