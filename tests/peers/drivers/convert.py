"""Makes what peers without GGUF read: a dense bf16 checkpoint, and the same with W8A8 layers.

``python convert.py MODEL.gguf DENSE_DIR W8A8_DIR``. The integers are per channel and rounded to the nearest,
the inputs quantized per token at run time: the arithmetic of a SmoothQuant checkpoint, at its speed; its
quality is not what is measured.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def main():
    gguf, dense, quantized = map(Path, sys.argv[1:])
    options = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        **options,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(**options, dequantize=True),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(dense)
    AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(dense)
    config_file = dense / "config.json"
    config = json.loads(config_file.read_text())
    config.pop("quantization_config", None)
    config_file.write_text(json.dumps(config, indent=2))
    shutil.copytree(dense, quantized, dirs_exist_ok=True)
    tensors = {}
    for name, weight in load_file(dense / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            scale = weight.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-8) / 127
            tensors[name] = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
            tensors[name + "_scale"] = scale.to(torch.bfloat16)
        else:
            tensors[name] = weight
    save_file(tensors, quantized / "model.safetensors", metadata={"format": "pt"})
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": W8A8}, indent=2))


if __name__ == "__main__":
    main()
