"""Tiny random Llama checkpoints with their transformers model as the truth: safetensors, shards and GGUF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.gguf_writer import GGUFValue
from gguf.quants import dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM

SMALL: Mapping[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A float32 model whose every parameter is random, norms and biases included."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(".bias"):
                parameter.normal_(0, 0.5)
    return model


def reference_logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """float32[len(ids), vocabulary]."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def write_gguf(
    model: LlamaForCausalLM, path: Path, kind: Callable[[str], GGMLQuantizationType]
) -> LlamaForCausalLM:
    """Write ``model`` as llama.cpp's converter does, ``kind`` giving each matrix its type by GGUF name.

    Returns the model with the numbers that the file holds after dequantization by the gguf library.
    """
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    _write_rope(writer, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _write_parameter(writer, model, name, parameter, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def llama_from_gguf(path: Path) -> LlamaForCausalLM:
    """A transformers model with a file's numbers, through the gguf library alone. Tied, as the default is."""
    reader = gguf.GGUFReader(path)

    def number(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    config = LlamaConfig(
        vocab_size=number("vocab_size"),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        max_position_embeddings=number("context_length"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    state = {}
    for name, parameter in model.named_parameters():
        tensor = stored[gguf_name(name)]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(parameter.shape))
        if "attn_q" in tensor.name or "attn_k" in tensor.name:
            values = half_order(values, values.shape[0] // config.head_dim)
        state[name] = torch.from_numpy(np.array(values, dtype=np.float32))
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@contextmanager
def overridden(key: str, value: object) -> Iterator[None]:
    """Files written meanwhile have this value at ``key``."""
    original = GGUFWriter.write_kv_data_to_file

    def write(self: GGUFWriter) -> None:
        kind = GGUFValueType.get_type(value)
        self.kv_data[0][key] = GGUFValue(value, GGUFValueType.UINT32 if isinstance(value, int) else kind)
        original(self)

    GGUFWriter.write_kv_data_to_file = write  # type: ignore[method-assign]
    header = GGUFWriter.write_header_to_file

    def write_header(self: GGUFWriter, path: Path | None = None) -> None:
        self.kv_data[0].setdefault(key, GGUFValue(0, GGUFValueType.UINT32))
        header(self, path)

    GGUFWriter.write_header_to_file = write_header  # type: ignore[method-assign]
    try:
        yield
    finally:
        GGUFWriter.write_kv_data_to_file = original  # type: ignore[method-assign]
        GGUFWriter.write_header_to_file = header  # type: ignore[method-assign]


def gguf_name(name: str) -> str:
    """A transformers parameter name in GGUF's spelling."""
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{suffix}"
    index, rest = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{index}.{GGUF_NAMES[rest]}.{suffix}"


def _write_rope(writer: GGUFWriter, model: LlamaForCausalLM) -> None:
    parameters = model.config.rope_parameters
    if parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(parameters["factor"])
    elif parameters["rope_type"] == "llama3":
        exponents = torch.arange(0, model.config.head_dim, 2).float() / model.config.head_dim
        plain = 1.0 / (parameters["rope_theta"] ** exponents)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())


def _write_parameter(
    writer: GGUFWriter,
    model: LlamaForCausalLM,
    name: str,
    parameter: torch.Tensor,
    kind: Callable[[str], GGMLQuantizationType],
) -> None:
    stored, values = gguf_name(name), parameter.numpy().copy()
    heads = 0
    if ".q_proj." in name:
        heads = model.config.num_attention_heads
    elif ".k_proj." in name:
        heads = model.config.num_key_value_heads
    if heads:
        values = pair_order(values, heads)
    if values.ndim == 1:
        writer.add_tensor(stored, values)
        return
    packed = quantize(values, kind(stored))
    writer.add_tensor(stored, packed, raw_dtype=kind(stored))
    kept = dequantize(packed, kind(stored)).reshape(values.shape)
    parameter.copy_(torch.from_numpy(half_order(kept, heads) if heads else kept))


def pair_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (first half, second half) to pairs, as llama.cpp's converter permutes them."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def half_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of ``pair_order``."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
