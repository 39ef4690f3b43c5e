"""Ground truth for Gemma 3 270M: transformers over its GGUF file, dequantized by the gguf library.

transformers' own reader of such files takes a minute, most of it for the vocabulary; this takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from hundredfold.models import GgufMetadata, gguf_metadata
from support.gguf_families import gguf_name

PROMPTS: dict[str, list[int]] = {
    "The capital of France is": [2, 818, 5279, 529, 7001, 563],
    "Once upon a time, in a village by the sea,": [
        2, 14946, 3324, 496, 990, 236764, 528, 496, 9744, 684, 506, 5442, 236764,
    ],
    "def fibonacci(n):\n": [2, 2063, 10779, 78113, 236769, 236749, 1473, 107],
    "The three primary colours are": [2, 818, 1806, 5905, 22640, 659],
    "In 1969, the first humans": [2, 902, 236743, 236770, 236819, 236825, 236819, 236764, 506, 1171, 14464],
    "Photosynthesis is the process by which": [2, 49660, 30445, 563, 506, 1657, 684, 837],
    "1, 1, 2, 3, 5, 8,": [
        2, 236770, 236764, 236743, 236770, 236764, 236743, 236778, 236764, 236743, 236800, 236764,
        236743, 236810, 236764, 236743, 236828, 236764,
    ],
    "日本の首都は": [2, 76444, 120211, 237048],
    "<html>\n<head>\n<title>": [2, 217, 107, 236820, 2834, 236813, 107, 236820, 3250, 236813],
    "A good night's sleep is important because": [
        2, 236776, 1535, 3446, 236789, 236751, 6745, 563, 2132, 1547,
    ],
}  # fmt: skip
"""Texts, and their ids as transformers reads the file's vocabulary."""


def load_gemma(path: Path) -> Gemma3ForCausalLM:
    """The model in float32, with the configuration that the file states and defaults for the rest."""
    metadata = gguf_metadata(path)
    config = _config(metadata)
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    state = {}
    for name, parameter in model.named_parameters():
        values = _values(metadata, gguf_name(name, "gemma3")).reshape(tuple(parameter.shape))
        # the converter adds one to the weights of norms
        state[name] = torch.from_numpy(values - np.float32(1) if "norm" in name else values)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)
    return model.eval()


def continuation(model: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """The greedy choice after the prompt and after every id of ``answer`` but the last.

    Equal to ``answer`` exactly when greedy decoding gives ``answer``, by induction.
    """
    with torch.inference_mode():
        ids = torch.tensor([prompt + answer[:-1]])
        logits = model(ids, logits_to_keep=len(answer)).logits[0]
    found: list[int] = logits.argmax(-1).tolist()
    return found


def _config(metadata: GgufMetadata) -> Gemma3TextConfig:
    def number(key: str) -> int:
        return int(metadata.values[f"gemma3.{key}"])  # type: ignore[arg-type]

    return Gemma3TextConfig(
        vocab_size=metadata.tensors["token_embd.weight"].shape[0],
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        head_dim=number("attention.key_length"),
        query_pre_attn_scalar=number("attention.key_length"),
        max_position_embeddings=number("context_length"),
        rms_norm_eps=float(metadata.values["gemma3.attention.layer_norm_rms_epsilon"]),  # type: ignore[arg-type]
        sliding_window=number("attention.sliding_window"),
        rope_theta=float(metadata.values["gemma3.rope.freq_base"]),  # type: ignore[arg-type]
    )


def _values(metadata: GgufMetadata, name: str) -> np.ndarray:
    tensor = metadata.tensors[name]
    raw = np.fromfile(metadata.path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
    rows = raw.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else raw
    return np.asarray(dequantize(rows, GGMLQuantizationType[tensor.type_name]), dtype=np.float32)
