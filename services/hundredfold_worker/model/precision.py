"""Where and in which type a model computes."""

from __future__ import annotations

import torch

from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.loaded import Selection

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def choose_device(asked: str) -> tuple[torch.device, Selection]:
    """``auto`` is the GPU where there is one. Raises ``ModelLoadError``."""
    if asked not in ("auto", "cpu", "cuda"):
        raise ModelLoadError(f"device '{asked}' is unknown; known are auto, cpu, cuda")
    has_gpu = torch.cuda.is_available()
    if asked == "cuda" and not has_gpu:
        raise ModelLoadError("device 'cuda' was asked for, but torch finds none; set device to cpu or auto")
    if asked != "auto":
        return torch.device(asked), Selection("device", asked, "asked for")
    if has_gpu:
        return torch.device("cuda"), Selection("device", "cuda", "torch finds a CUDA device")
    return torch.device("cpu"), Selection("device", "cpu", "torch finds no CUDA device")


def choose_dtype(asked: str, device: torch.device) -> tuple[torch.dtype, Selection]:
    """``auto`` is bf16 where the hardware multiplies it, fp32 elsewhere. Raises ``ModelLoadError``."""
    if asked != "auto" and asked not in DTYPES:
        raise ModelLoadError(f"dtype '{asked}' is unknown; known are auto, {', '.join(DTYPES)}")
    if asked == "fp16" and device.type == "cpu":
        raise ModelLoadError("dtype 'fp16' overflows and is slow on a CPU; set dtype to auto, bf16 or fp32")
    if asked != "auto":
        slow = asked == "bf16" and device.type == "cpu" and not cpu_multiplies_bf16()
        reason = (
            "asked for; this processor has no bf16 instructions and is slow in it" if slow else "asked for"
        )
        return DTYPES[asked], Selection("dtype", asked, reason)
    name, reason = "bf16", f"{device.type} multiplies bf16"
    if device.type == "cpu" and not cpu_multiplies_bf16():
        name, reason = "fp32", "this processor has no bf16 instructions"
    return DTYPES[name], Selection("dtype", name, reason)


def cpu_multiplies_bf16() -> bool:
    """Whether the processor has bf16 products (AVX512-BF16 or AMX) and torch's oneDNN uses them."""
    try:
        usable = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False
    return usable and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
