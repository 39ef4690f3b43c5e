"""The flash-attn library, found when it is asked for: its two functions, or why they cannot be had here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

LEAST_VERSION = (2, 6)
"""The first with soft-cap; block tables came earlier."""
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class Library:
    """What is used of it, as in flash_attn/flash_attn_interface.py of version 2."""

    varlen: Callable[..., Tensor]
    """``flash_attn_varlen_func``: rows of any number of queries."""
    with_cache: Callable[..., Tensor]
    """``flash_attn_with_kvcache``: rows of one query each; splits long sequences over the device."""
    device_type: str = "cuda"


@cache
def find() -> Library | str:
    """The library, or the reason why there is none. Nothing is imported before torch finds a device."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        return f"needs compute capability {_show(LEAST_CAPABILITY)}, the device has {_show(capability)}"
    try:
        module = import_module("flash_attn")
    except Exception as error:  # a build for another torch fails with more than ImportError
        return f"flash-attn cannot be imported: {type(error).__name__}: {error}"
    return of_module(module)


def of_module(module: ModuleType) -> Library | str:
    """What an imported flash_attn offers."""
    version = str(getattr(module, "__version__", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_VERSION or numbers >= (3,):
        return (
            f"needs flash-attn {_show(LEAST_VERSION)} to 2.x, installed is {version or 'an unknown version'}"
        )
    return Library(module.flash_attn_varlen_func, module.flash_attn_with_kvcache)


def _show(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
