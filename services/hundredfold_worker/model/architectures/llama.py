"""Llama 1 to 3.x and whatever shares their shape, such as SmolLM2: configuration to description and names."""

from __future__ import annotations

import re
from dataclasses import replace

from hundredfold.models import GgufMetadata
from hundredfold.plugin import RotaryStyle
from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.names import DescribedModel, LayerNames, ParameterNames
from hundredfold_worker.model.architectures.rope_config import rotary_from_config
from hundredfold_worker.model.checkpoint import ConfigJson, MappedTensors
from hundredfold_worker.model.description import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SIZE,
    MAX_VOCABULARY,
    AttentionDescription,
    DivisorScaling,
    LayerDescription,
    LinearScaling,
    MlpDescription,
    ModelDescription,
    RotaryDescription,
)
from hundredfold_worker.model.errors import ModelLoadError


def from_config(config: ConfigJson) -> DescribedModel:
    """From config.json; what it leaves out has the defaults of transformers' LlamaConfig."""
    activation = config.string("hidden_act", default="silu")
    if activation not in ("silu", "swish"):
        raise config.wrong("hidden_act", "silu")
    hidden = config.integer("hidden_size", most=MAX_SIZE)
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    if not config.has("head_dim") and hidden % heads:
        raise config.wrong("hidden_size", f"a multiple of num_attention_heads, {heads}, without a head_dim")
    head_dim = config.integer("head_dim", default=hidden // heads, most=MAX_SIZE)
    kv_heads = config.integer("num_key_value_heads", default=heads, most=heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    bias = config.boolean("attention_bias", default=False)
    max_position = config.integer("max_position_embeddings", default=2048, most=MAX_POSITIONS)
    layer = LayerDescription(
        attention=AttentionDescription(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=MlpDescription(
            intermediate_size=config.integer("intermediate_size", most=MAX_SIZE),
            bias=config.boolean("mlp_bias", default=False),
        ),
    )
    num_layers = config.integer("num_hidden_layers", most=MAX_LAYERS)
    description = ModelDescription(
        architecture="LlamaForCausalLM",
        vocab_size=config.integer("vocab_size", most=MAX_VOCABULARY),
        hidden_size=hidden,
        norm_eps=config.number("rms_norm_eps", default=1e-6),
        rotary=rotary_from_config(config, head_dim, max_position),
        layers=(layer,) * num_layers,
        tied_head=config.boolean("tie_word_embeddings", default=False),
        max_position=max_position,
    )
    return DescribedModel(description, _config_names(num_layers))


def from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """From GGUF metadata. Query and key rows were reordered on conversion, so that pairs rotate."""
    section = GgufSection(metadata, "llama")
    if section.integer("expert_count", default=0, least=0, most=MAX_SIZE):
        raise ModelLoadError(f"{metadata.path}: 'llama.expert_count': mixtures of experts are not supported")
    hidden = section.integer("embedding_length", most=MAX_SIZE)
    heads = section.same_in_every_layer("attention.head_count", most=MAX_HEADS)
    head_dim = section.integer("attention.key_length", default=hidden // heads, most=MAX_SIZE)
    if section.integer("attention.value_length", default=head_dim, most=MAX_SIZE) != head_dim:
        raise section.wrong("attention.value_length", f"equal to the key length, {head_dim}")
    kv_heads = section.same_in_every_layer("attention.head_count_kv", default=heads, most=heads)
    if heads % kv_heads:
        raise section.wrong("attention.head_count_kv", f"a divisor of the head count, {heads}")
    num_layers = section.integer("block_count", most=MAX_LAYERS)
    names = _gguf_names(num_layers)
    first, stored = names.layers[0], tensors.names()
    layer = LayerDescription(
        attention=AttentionDescription(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=f"{first.query}.bias" in stored,
            output_bias=f"{first.attention_output}.bias" in stored,
        ),
        mlp=MlpDescription(
            intermediate_size=section.same_in_every_layer("feed_forward_length", most=MAX_SIZE),
            bias=f"{first.gate}.bias" in stored,
        ),
    )
    table = tensors.shape(f"{names.embedding}.weight")
    if table is None:
        raise ModelLoadError(f"{metadata.path}: tensor '{names.embedding}.weight' is missing")
    description = ModelDescription(
        architecture="llama",
        vocab_size=table[0],
        hidden_size=hidden,
        norm_eps=section.number("attention.layer_norm_rms_epsilon", default=1e-5),
        rotary=_gguf_rotary(section, tensors, head_dim),
        layers=(layer,) * num_layers,
        tied_head=f"{names.head}.weight" not in stored,
        max_position=section.integer("context_length", most=MAX_POSITIONS),
    )
    return DescribedModel(description, names)


def _gguf_rotary(section: GgufSection, tensors: MappedTensors, head_dim: int) -> RotaryDescription:
    dim = section.integer("rope.dimension_count", default=head_dim, least=2, most=head_dim)
    if dim % 2:
        raise section.wrong("rope.dimension_count", "even")
    theta = section.number("rope.freq_base", default=10_000.0)
    rotary = RotaryDescription(dim=dim, theta=theta, style=RotaryStyle.PAIRS)
    kind = section.string("rope.scaling.type", default="none")
    factor = section.number("rope.scaling.factor", default=section.number("rope.scale_linear", default=1.0))
    if kind == "linear" or (kind == "none" and section.has("rope.scale_linear")):
        rotary = replace(rotary, scaling=LinearScaling(factor))
    elif kind != "none":
        raise section.wrong("rope.scaling.type", "none or linear")
    if tensors.shape("rope_freqs.weight") is None:
        return rotary
    if rotary.scaling is not None:
        raise section.wrong("rope.scaling.type", "none, because the file has rope_freqs.weight")
    divisors = tensors.dense("rope_freqs.weight").float().flatten()
    if len(divisors) != dim // 2 or not bool((divisors.isfinite() & (divisors > 0)).all()):
        raise ModelLoadError(
            f"{section.path}: 'rope_freqs.weight' has {len(divisors)} numbers, "
            f"expected are {dim // 2}, finite and above 0"
        )
    return replace(rotary, scaling=DivisorScaling(tuple(divisors.tolist())))


def _config_names(num_layers: int) -> ParameterNames:
    def layer(index: int) -> LayerNames:
        at = f"model.layers.{index}"
        return LayerNames(
            attention_norm=f"{at}.input_layernorm",
            query=f"{at}.self_attn.q_proj",
            key=f"{at}.self_attn.k_proj",
            value=f"{at}.self_attn.v_proj",
            attention_output=f"{at}.self_attn.o_proj",
            mlp_norm=f"{at}.post_attention_layernorm",
            gate=f"{at}.mlp.gate_proj",
            up=f"{at}.mlp.up_proj",
            down=f"{at}.mlp.down_proj",
        )

    return ParameterNames(
        embedding="model.embed_tokens",
        final_norm="model.norm",
        head="lm_head",
        layers=tuple(layer(index) for index in range(num_layers)),
        ignored=re.compile(
            r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.inv_freq"
        ),
    )


def _gguf_names(num_layers: int) -> ParameterNames:
    def layer(index: int) -> LayerNames:
        at = f"blk.{index}"
        return LayerNames(
            attention_norm=f"{at}.attn_norm",
            query=f"{at}.attn_q",
            key=f"{at}.attn_k",
            value=f"{at}.attn_v",
            attention_output=f"{at}.attn_output",
            mlp_norm=f"{at}.ffn_norm",
            gate=f"{at}.ffn_gate",
            up=f"{at}.ffn_up",
            down=f"{at}.ffn_down",
        )

    return ParameterNames(
        embedding="token_embd",
        final_norm="output_norm",
        head="output",
        layers=tuple(layer(index) for index in range(num_layers)),
        ignored=re.compile(r"rope_freqs\.weight"),
    )
