"""What vLLM is told on a CPU, offline and as a server, so that both are at their best."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

LIBRARIES = (
    (Path(sys.prefix) / "lib", "libiomp5.so"),
    (Path("/usr/lib/x86_64-linux-gnu"), "libtcmalloc_minimal.so.4"),
)
"""What its documentation wants loaded first: the one comes with it, the other where the machine has it."""

VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # it would leave a core idle
}


def dtype():
    """bf16 where the processor multiplies it, floats elsewhere.

    Without such instructions its first trial step in bf16 does not end within minutes.
    """
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if multiplies else "float32"


def environment():
    """The variables of its processes; those that are set already win."""
    found = [str(place / name) for place, name in LIBRARIES if (place / name).exists()]
    return {**VARIABLES, **({"LD_PRELOAD": ":".join(found)} if found else {}), **os.environ}


def start_over():
    """Run this script again with the variables: libraries are preloaded when a process starts."""
    wanted = environment()
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)
