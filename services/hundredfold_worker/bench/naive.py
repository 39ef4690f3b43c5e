"""The naive way: transformers' `generate`, one request, on the same weights, dequantized if they are packed.

A script for an environment of its own, which needs torch and transformers (accelerate and gguf for GGUF) and
nothing of ours: ``python naive.py PATH --dtype fp32``, PATH a GGUF file or a checkpoint directory. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WARMUP_LEN = 4


def load(path: Path, dtype: torch.dtype) -> Any:
    """The model, dense, in ``dtype``."""
    transformers: Any = import_module("transformers")
    read = transformers.AutoModelForCausalLM.from_pretrained
    if path.suffix != ".gguf":
        return read(path, dtype=dtype).eval()
    dense = transformers.GgufConfig(gguf_file=path.name, dequantize=True)
    return read(path.parent, gguf_file=path.name, dtype=dtype, quantization_config=dense).eval()


def generate(model: Any, prompt: torch.Tensor, length: int, limit_s: float) -> tuple[int, float]:
    """Generate greedily: tokens, fewer when the time was up, and seconds with the prompt's among them."""
    begun = time.perf_counter()
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
    return int(ids.shape[1] - prompt.shape[1]), time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES), required=True)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--runs", type=int, default=2, help="the best one counts")
    parser.add_argument("--limit-s", type=float, default=30.0, help="a run is cut off after this long")
    options = parser.parse_args()

    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    begun = time.perf_counter()
    model = load(options.path, DTYPES[options.dtype])
    loaded = time.perf_counter() - begun
    table = model.get_input_embeddings().weight.shape
    top = max(min(40_000, table[0]), 2)
    drawn = torch.Generator().manual_seed(0)
    prompt = torch.randint(min(1000, top // 2), top, (1, options.input_len), generator=drawn)
    generate(model, prompt, WARMUP_LEN, options.limit_s)
    first = min(generate(model, prompt, 1, options.limit_s)[1] for _ in range(2))
    runs = [generate(model, prompt, options.output_len, options.limit_s) for _ in range(options.runs)]
    tokens, seconds = max(runs, key=lambda run: run[0] / run[1])
    found = {
        "tokens_per_s": tokens / seconds,
        "runs": [tokens / seconds for tokens, seconds in runs],
        "ttft_ms": 1e3 * first,
        "tpot_ms": 1e3 * (seconds - first) / max(tokens - 1, 1),
        "load_s": loaded,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "weight_bytes": sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
