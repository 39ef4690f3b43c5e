"""What vLLM computes in: bf16 where the processor multiplies it, floats elsewhere.

Without such instructions its first trial step in bf16 does not end within minutes.
"""

from __future__ import annotations

import torch


def dtype():
    """As its option ``dtype`` wants it."""
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if multiplies else "float32"
