"""GGUF files of every family against transformers over the same numbers; K-quants of llama.cpp's layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from hundredfold_worker.model import ModelLoadError
from support.gguf_families import write_family
from support.llama_checkpoints import overridden, random_llama, write_gguf
from support.model_rows import load, one_prefill, run_rows
from support.random_checkpoints import fix_rotary, random_ids, random_model, reference_logits

IDS = random_ids(60)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [2.0 + 0.5 * index for index in range(8)],
}
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

VARIANTS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "qwen2": ("Qwen2", "qwen2", {}, {}),
    "qwen2, tied": ("Qwen2", "qwen2", {"tie_word_embeddings": True}, {}),
    "qwen2, yarn": ("Qwen2", "qwen2", {"rope_parameters": YARN}, {}),
    "qwen3": ("Qwen3", "qwen3", {}, {}),
    "gemma2": ("Gemma2", "gemma2", {"query_pre_attn_scalar": 24}, {}),
    "gemma2, low caps": (
        "Gemma2",
        "gemma2",
        {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        {},
    ),
    "gemma3": ("Gemma3", "gemma3", {"query_pre_attn_scalar": 24}, {}),
    "gemma3, linear where all is seen": (
        "Gemma3",
        "gemma3",
        {"query_pre_attn_scalar": 24, "rope_parameters": LINEAR},
        {},
    ),
    "gemma3, every third": (
        "Gemma3",
        "gemma3",
        {
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2
            + ["sliding_attention"],
        },
        {"attention__sliding_window_pattern": 3},
    ),
    "gemma3, layers listed": (
        "Gemma3",
        "gemma3",
        {
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {"attention__sliding_window_pattern": [False, True]},
    ),
    "phi3": ("Phi3", "phi3", {}, {}),
    "phi3, window and half a head": (
        "Phi3",
        "phi3",
        {
            "sliding_window": 20,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
            },
        },
        {},
    ),
    "olmo2": ("Olmo2", "olmo2", {"num_key_value_heads": 4}, {}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(tmp_path: Path, variant: str) -> None:
    family, architecture, changes, keys = VARIANTS[variant]
    path = tmp_path / "model.gguf"
    reference = write_family(
        random_model(family, **changes), path, architecture, lambda name: Kind.Q8_0, **keys
    )
    check(load(path), reference)


def check(model: Any, reference: Any) -> None:
    assert model.runtime.warnings == ()
    assert model.runtime.num_parameters == reference.num_parameters()
    wanted = reference_logits(reference, IDS)
    for got in run_rows(model, [(IDS, [60]), (IDS, [7, 9, 44]), (IDS, [50, *[1] * 10])]):
        assert float((got - wanted).abs().max()) <= 1e-4


@pytest.mark.parametrize("max_model_len", [64, 65])
def test_longrope_of_phi3(tmp_path: Path, max_model_len: int) -> None:
    reference = random_model("Phi3", original_max_position_embeddings=64, rope_parameters=dict(LONGROPE))
    path = tmp_path / "model.gguf"
    write_family(reference, path, "phi3", lambda name: Kind.F16)
    fix_rotary(reference, max_model_len)
    check(load(path, max_model_len=max_model_len), reference)


OTHER_TYPES = """
Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0
""".split()


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_every_other_type(tmp_path: Path, name: str) -> None:
    """The gguf library reads these types and does not write them, so that any bytes have to do."""
    kind = Kind[name]
    path = tmp_path / "model.gguf"
    reference = random_llama(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    weight = reference.model.layers[0].mlp.down_proj.weight
    packed = _random_blocks(kind, weight.shape[0], weight.shape[1])
    values = torch.from_numpy(dequantize(packed, kind).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        original = GGUFWriter.add_tensor

        def add(self: GGUFWriter, name: str, *args: Any, **kwargs: Any) -> None:
            if name == "blk.0.ffn_down.weight":
                args, kwargs = (packed,), {"raw_dtype": kind}
            original(self, name, *args, **kwargs)

        patch.setattr(GGUFWriter, "add_tensor", add)
        write_gguf(reference, path, lambda name: Kind.F32)
    with torch.no_grad():
        weight.copy_(values)
    wanted = reference_logits(reference, IDS)
    assert float((one_prefill(load(path), IDS) - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())


def _random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Random bytes of that type, uint8[rows, bytes]; blocks with huge scales are drawn again."""
    block, nbytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(7)
    packed = random.integers(0, 256, (rows, columns // block, nbytes), dtype=np.uint8)
    while True:
        with np.errstate(all="ignore"):
            values = dequantize(packed.reshape(rows, -1), kind).reshape(rows, -1, block)
            bad = ~(np.isfinite(values) & (np.abs(values) < 64)).all(-1)
        if not bad.any():
            return packed.reshape(rows, -1)
        packed[bad] = random.integers(0, 256, (int(bad.sum()), nbytes), dtype=np.uint8)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("gemma3.attention.sliding_window_pattern", 0, "'gemma3.attention.sliding_window_pattern' is 0"),
        ("gemma3.attention.sliding_window", "many", "'gemma3.attention.sliding_window' is str"),
        ("gemma3.final_logit_softcapping", float("nan"), "'gemma3.final_logit_softcapping' is nan"),
        ("gemma3.rope.freq_base_swa", -1.0, "'gemma3.rope.freq_base_swa' is -1.0"),
        ("gemma3.rope.scaling.type", "longrope", "the file has no 'rope_factors_long.weight'"),
    ],
)
def test_metadata_that_cannot_be_served(tmp_path: Path, key: str, value: Any, said: str) -> None:
    path = tmp_path / "model.gguf"
    with overridden(key, value):
        write_family(random_model("Gemma3"), path, "gemma3", lambda name: Kind.F32)
    with pytest.raises(ModelLoadError) as caught:
        load(path)
    assert said in str(caught.value)
