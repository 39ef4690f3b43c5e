"""Tiny random Llama checkpoints with quantized linear layers, and the dense model of the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from support.llama_checkpoints import random_llama
from support.packed_words import Quantized

ODD = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 24}
"""Rows of 96 and 160: a group of 64 or 128 is short at the end, one of 32 is not."""

Write = Callable[[str, Tensor], "tuple[Mapping[str, Tensor], Tensor] | None"]
"""A layer's name and matrix to its tensors and the matrix they stand for; ``None`` leaves it as it is."""


def write_quantized(
    directory: Path, section: Mapping[str, Any], write: Write, *, seed: int = 0, **changes: Any
) -> LlamaForCausalLM:
    """Write the checkpoint; returns the model with the numbers that its tensors stand for."""
    model = random_llama(seed, **{**ODD, **changes})
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            layer = name.removesuffix(".weight")
            made = write(layer, parameter) if _is_linear(layer, parameter) else None
            if made is None:
                tensors[name] = parameter.clone()
            else:
                tensors.update(made[0])
                parameter.copy_(made[1])
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.quantization_config = dict(section)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(directory)
    return model


def _is_linear(layer: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and layer != "model.embed_tokens"


def each_layer(pack: Callable[[str, Tensor], tuple[Mapping[str, Tensor], Quantized] | None]) -> Write:
    """The same from what gives integers."""

    def write(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
        made = pack(name, matrix)
        return None if made is None else (made[0], made[1].matrix)

    return write
