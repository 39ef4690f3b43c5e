"""A decoder's sizes from its config.json: any dense one, mixtures of experts, compressed attention.

Served architectures are held to what a worker really loads; others are read by the keys that they share.
"""

from __future__ import annotations

from collections.abc import Iterator

from hundredfold.errors import StartError
from hundredfold.plugin import LayerRole
from hundredfold_worker.estimate.config_values import Config
from hundredfold_worker.estimate.parts import AttentionCache, Outline, Part

MOST_LAYERS = 4096
EMBEDDING = "model.embed_tokens"
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "cohere", "cohere2", "falcon", "bloom", "mpt")
"""Kinds whose output layer is the embedding unless they say otherwise."""
_TWO_MATRICES = ("gpt2", "opt", "falcon", "bloom", "gpt_neox", "phi", "starcoder2", "mpt", "nemotron")
"""Kinds whose feed-forward part has no gate."""
_HEAD_DIM = {"gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "qwen3": 128, "qwen3_moe": 128}
_BIAS_IN = ("qwen2", "qwen2_moe")
"""Kinds with a bias on queries, keys and values that no key tells of."""
_AROUND = ("gemma2", "gemma3", "gemma3_text")
_HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text")


def outline_of(config: Config) -> Outline:
    """Sizes. Raises ``StartError`` naming the key that is missing or wrong."""
    kind = config.text("model_type")
    hidden = config.size("hidden_size", "n_embd", "d_model")
    layers = config.size("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if layers > MOST_LAYERS:
        raise StartError(f"{config.path}: 'num_hidden_layers' is {layers}, the limit is {MOST_LAYERS}")
    vocabulary = config.size("vocab_size")
    inner = config.size("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * hidden)
    tied = config.says("tie_word_embeddings", kind in _TIED)
    attention = _Attention(config, kind, hidden)
    parts = [Part(EMBEDDING, vocabulary, hidden, LayerRole.TABLE)]
    for index in range(layers):
        prefix = f"model.layers.{index}"
        parts += attention.parts(f"{prefix}.self_attn")
        parts += _feed_forward(config, kind, hidden, inner, index, f"{prefix}.mlp")
    parts.append(Part("lm_head", vocabulary, hidden, LayerRole.HEAD))
    windows = _windows(config, kind, layers)
    names = config.texts("architectures")
    return Outline(
        architecture=names[0] if names else kind or "unknown",
        parts=tuple(parts),
        vectors=layers * _vectors(config, kind, hidden, inner, attention) + hidden,
        caches=tuple(attention.cache(window) for window in windows),
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position=config.size(
            "max_position_embeddings", "n_positions", "max_sequence_length", default=_positions(kind)
        ),
        tied_head=tied,
        rotated=attention.rotated * (2 if kind.startswith("gemma3") else 1),
    )


class _Attention:
    """Grouped-query attention, or one that keeps a compressed vector (kv_lora_rank)."""

    def __init__(self, config: Config, kind: str, hidden: int) -> None:
        self.hidden = hidden
        self.heads = config.size("num_attention_heads", "n_head", "num_heads")
        shared = 1 if config.says("multi_query") else self.heads
        self.kv_heads = config.size("num_key_value_heads", "num_kv_heads", "n_head_kv", default=shared)
        self.head_dim = config.size("head_dim", default=_HEAD_DIM.get(kind, max(1, hidden // self.heads)))
        if self.kv_heads > self.heads:
            raise StartError(
                f"{config.path}: 'num_key_value_heads' is {self.kv_heads}, more than the "
                f"{self.heads} num_attention_heads"
            )
        self.joined = kind == "phi3"
        self.compressed = config.optional("kv_lora_rank") or 0
        self.query_rank = config.optional("q_lora_rank") or 0
        self.plain = config.optional("qk_nope_head_dim") or self.head_dim
        self.turning = config.optional("qk_rope_head_dim") or self.head_dim
        self.value = config.optional("v_head_dim") or self.head_dim
        key = "partial_rotary_factor"
        share = config.values.get(key, config.section("rope_parameters").get(key))
        self.rotated = int(self.head_dim * (share if isinstance(share, float) and 0 < share < 1 else 1))

    def parts(self, prefix: str) -> Iterator[Part]:
        """Its matrices."""
        if self.compressed:
            yield from self._compressed_parts(prefix)
            return
        width, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.joined:
            yield Part(f"{prefix}.qkv_proj", width + 2 * narrow, self.hidden)
        else:
            yield Part(f"{prefix}.q_proj", width, self.hidden)
            yield Part(f"{prefix}.k_proj", narrow, self.hidden)
            yield Part(f"{prefix}.v_proj", narrow, self.hidden)
        yield Part(f"{prefix}.o_proj", self.hidden, width)

    def _compressed_parts(self, prefix: str) -> Iterator[Part]:
        queries = self.heads * (self.plain + self.turning)
        if self.query_rank:
            yield Part(f"{prefix}.q_a_proj", self.query_rank, self.hidden)
            yield Part(f"{prefix}.q_b_proj", queries, self.query_rank)
        else:
            yield Part(f"{prefix}.q_proj", queries, self.hidden)
        yield Part(f"{prefix}.kv_a_proj_with_mqa", self.compressed + self.turning, self.hidden)
        yield Part(f"{prefix}.kv_b_proj", self.heads * (self.plain + self.value), self.compressed)
        yield Part(f"{prefix}.o_proj", self.hidden, self.heads * self.value)

    def cache(self, window: int | None) -> AttentionCache:
        """What it keeps of a token."""
        if self.compressed:
            return AttentionCache(1, self.compressed, self.turning, window)
        return AttentionCache(self.kv_heads, self.head_dim, self.head_dim, window)


def _feed_forward(
    config: Config, kind: str, hidden: int, inner: int, index: int, prefix: str
) -> Iterator[Part]:
    experts = config.optional("num_local_experts", "num_experts", "n_routed_experts") or 0
    if not experts or not _is_mixture(config, index):
        yield from _mlp(kind, hidden, inner, prefix)
        return
    size = config.size("moe_intermediate_size", default=inner)
    used = min(config.size("num_experts_per_tok", "num_experts_per_token", default=2), experts)
    yield Part(f"{prefix}.gate", experts, hidden, LayerRole.ROUTER)
    yield Part(f"{prefix}.experts.gate_proj", size, hidden, copies=experts, used=used)
    yield Part(f"{prefix}.experts.up_proj", size, hidden, copies=experts, used=used)
    yield Part(f"{prefix}.experts.down_proj", hidden, size, copies=experts, used=used)
    shared = config.optional("n_shared_experts") or 0
    shared_size = config.optional("shared_expert_intermediate_size") or shared * size
    if shared_size:
        yield from _mlp(kind, hidden, shared_size, f"{prefix}.shared_experts")


def _mlp(kind: str, hidden: int, inner: int, prefix: str) -> Iterator[Part]:
    if kind == "phi3":
        yield Part(f"{prefix}.gate_up_proj", 2 * inner, hidden)
    else:
        if kind not in _TWO_MATRICES:
            yield Part(f"{prefix}.gate_proj", inner, hidden)
        yield Part(f"{prefix}.up_proj", inner, hidden)
    yield Part(f"{prefix}.down_proj", hidden, inner)


def _is_mixture(config: Config, index: int) -> bool:
    dense = config.values.get("mlp_only_layers")
    if isinstance(dense, list) and index in dense:
        return False
    if index < (config.optional("first_k_dense_replace") or 0):
        return False
    return (index + 1) % max(1, config.optional("decoder_sparse_step", "moe_layer_freq") or 1) == 0


def _windows(config: Config, kind: str, layers: int) -> list[int | None]:
    """Each layer's window, by ``layer_types`` or by the habits of its kind."""
    default = {"mistral": 4096, "gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096}.get(kind)
    window = config.optional("sliding_window") if "sliding_window" in config.values else default
    if kind.startswith("qwen") and not config.says("use_sliding_window"):
        return [None] * layers
    if not window:
        return [None] * layers
    kinds = config.texts("layer_types")
    if len(kinds) == layers:
        return [window if "sliding" in kind or "chunked" in kind else None for kind in kinds]
    if kind == "gemma2" or kind == "gpt_oss":
        return [None if index % 2 else window for index in range(layers)]
    if kind.startswith("gemma3"):
        every = config.optional("sliding_window_pattern") or 6
        return [window if (index + 1) % every else None for index in range(layers)]
    if kind.startswith("qwen"):
        first = config.optional("max_window_layers")
        return [window if index >= (28 if first is None else first) else None for index in range(layers)]
    return [window] * layers


def _vectors(config: Config, kind: str, hidden: int, inner: int, attention: _Attention) -> int:
    """Numbers in a layer's norms and biases."""
    norms = 4 * hidden if kind in _AROUND else 2 * hidden
    width, narrow = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    if kind in _HEAD_NORMS:
        norms += 2 * attention.head_dim
    elif kind in ("olmo2", "olmo3"):
        norms += width + narrow
    biases = 0
    if kind in _BIAS_IN or config.says("attention_bias"):
        biases += width + 2 * narrow
    if config.says("attention_bias") and kind not in _BIAS_IN:
        biases += hidden
    if config.says("mlp_bias"):
        biases += 2 * inner + hidden
    return norms + biases


def _positions(kind: str) -> int:
    return {"mistral": 131_072, "qwen2": 32_768, "qwen3": 32_768, "gemma2": 8192}.get(
        kind, 131_072 if kind.startswith("gemma3") else 2048
    )
