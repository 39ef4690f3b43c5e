"""Turns a checkpoint of plain floats into a nibble one: `python -m nibble.write SOURCE DESTINATION`."""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nibble.format import GROUP

KEEP = ("model.embed_tokens", "lm_head")
"""Layers that stay floats: they cost little and matter most."""


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight` float[N, K] as `nibbles` and `scales`. Raises ``ValueError`` when K is no multiple of 32."""
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"rows of {columns} are no multiple of {GROUP}")
    groups = weight.float().view(rows, -1, GROUP)
    scales = (groups.abs().amax(-1) / 7).clamp_min(2.0**-14).to(torch.float16)
    codes = (groups / scales.float()[..., None]).round().clamp(-8, 7).to(torch.int8) + 8
    pairs = codes.view(torch.uint8).view(rows, -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scales


def dequantize(nibbles: Tensor, scales: Tensor) -> Tensor:
    """What the stored numbers mean, float32[N, K]."""
    codes = torch.stack((nibbles & 15, nibbles >> 4), dim=-1).flatten(1).float()
    return (codes - 8) * scales.float().repeat_interleave(GROUP, dim=1)


def write(source: Path, destination: Path) -> None:
    """Quantize every matrix of the checkpoint at `source` that is not kept; all other files are copied."""
    shutil.copytree(source, destination, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if tensor.ndim == 2 and layer not in KEEP:
            tensors[f"{layer}.nibbles"], tensors[f"{layer}.scales"] = quantize(tensor)
        else:
            tensors[name] = tensor
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "nibble", "modules_to_not_convert": list(KEEP)}
    (destination / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
