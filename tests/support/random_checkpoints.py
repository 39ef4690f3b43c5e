"""Tiny random checkpoints of every served architecture, with their transformers model as the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

SMALL: Mapping[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 24},
    "Gemma2": {"head_dim": 24, "query_pre_attn_scalar": 48, "sliding_window": 20, "num_hidden_layers": 3},
    "Gemma3": {"head_dim": 24, "query_pre_attn_scalar": 48, "sliding_window": 20, "num_hidden_layers": 7},
    "Phi3": {},
    "Olmo2": {},
}
"""Every family, and what its smallest checkpoint has beside ``SMALL``."""

_CONFIG_NAMES = {"Gemma3": "Gemma3TextConfig"}


def random_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A float32 model of ``<family>ForCausalLM`` whose every parameter is random, norms and biases included.

    Attention is computed by transformers' own plain code, the only one that does soft-caps.
    """
    torch.manual_seed(seed)
    config_class = getattr(transformers, _CONFIG_NAMES.get(family, f"{family}Config"))
    config = config_class(**{**SMALL, **FAMILIES[family], **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32).eval()
    centre = 0.0 if family.startswith("Gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(centre - 0.5, centre + 0.5)
            elif name.endswith(".bias"):
                parameter.normal_(0, 0.5)
    return model


def reference_logits(model: Any, ids: list[int]) -> Tensor:
    """float32[len(ids), vocabulary]."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def fix_rotary(model: Any, max_model_len: int) -> None:
    """Fix the frequencies of scalings that depend on length, as a server has to: by its longest sequence."""
    rotary = model.model.rotary_emb
    compute: Callable[..., tuple[Tensor, float]] = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[
        rotary.rope_type
    ]
    frequencies, rotary.attention_scaling = compute(model.config, seq_len=max_model_len)
    rotary.inv_freq.copy_(frequencies)
    rotary.rope_type = "fixed"


def random_ids(count: int, seed: int = 5) -> list[int]:
    """Token ids of the tiny vocabulary."""
    ids: list[int] = torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids
