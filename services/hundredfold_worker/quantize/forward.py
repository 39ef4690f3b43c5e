"""One decoder layer in float32 over the calibration text, product by product, so that each can be changed
before the next one's inputs are computed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionBatch, Elementwise, ElementwiseSpec, KVCacheSpec, Rotation
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model.build import attention_spec
from hundredfold_worker.model.cache import BackendCachePlanner, heads_of_cache
from hundredfold_worker.model.decoder import DecoderLayer, Norm, Projection, QueryKeyNorms
from hundredfold_worker.model.description import ModelDescription, QueryKeyNorm
from hundredfold_worker.model.rotary import RotaryTable
from hundredfold_worker.model.selection import AUTO, choose_attention, choose_elementwise, choose_kv_cache
from hundredfold_worker.quantize.source import SourceLayer
from hundredfold_worker.quantize.statistics import InputStatistics, Wanted, gather

BLOCK_SIZE = 16


@enum.unique
class Stage(enum.Enum):
    """The inputs of a layer's products; linear layers of one stage share theirs."""

    QUERY_KEY_VALUE = "attention input"
    ATTENTION_OUTPUT = "attention output"
    GATE_UP = "feed-forward input"
    DOWN = "feed-forward output"


@dataclass(slots=True)
class Product:
    """A linear layer that runs as it will be served."""

    weight: Tensor
    """float32[N, K]."""
    bias: Tensor | None
    round_input: Callable[[Tensor], Tensor] | None = None
    """What serving does to inputs; ``None`` where they stay floats."""
    nbytes: int = 0
    recipe: str = "calibration"

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` float32[T, K] to [T, N]."""
        return F.linear(x if self.round_input is None else self.round_input(x), self.weight, self.bias)


def stages(layer: SourceLayer) -> dict[Stage, list[str]]:
    """The names of each stage's linear layers."""
    names = layer.names
    return {
        Stage.QUERY_KEY_VALUE: list(names.query_key_value),
        Stage.ATTENTION_OUTPUT: [names.attention_output],
        Stage.GATE_UP: list(names.gate_up),
        Stage.DOWN: [names.down],
    }


AtStage = Callable[[Stage, InputStatistics | None], None]
"""Called when a stage's inputs are known and before its products are computed: it may change them."""


class Calibrator:
    """Runs layers. Holds what they share: rotary tables, operations, a cache of one sequence."""

    def __init__(
        self,
        description: ModelDescription,
        norm_offset: float,
        window: int,
        registries: Mapping[str, Registry],
    ) -> None:
        device, dtype = torch.device("cpu"), torch.float32
        self._description = description
        self._norm_offset = norm_offset
        kv_heads, head_dim = heads_of_cache(description)
        spec = KVCacheSpec(1, kv_heads, head_dim, BLOCK_SIZE, device, dtype)
        encoding, _ = choose_kv_cache(registries, spec, AUTO)
        specs = [attention_spec(a) for a in dict.fromkeys(layer.attention for layer in description.layers)]
        attention, _ = choose_attention(registries, specs, spec, encoding, AUTO)
        self._planner = BackendCachePlanner(attention, spec, encoding)
        self._cache = self._planner.allocate(-(-window // BLOCK_SIZE)).layers[0]
        activations = frozenset(layer.mlp.activation for layer in description.layers)
        self._operations: Elementwise = choose_elementwise(
            registries, ElementwiseSpec(device, dtype, activations)
        )[0]
        self._tables = [
            RotaryTable(rotary, description.max_position, device) for rotary in description.rotaries
        ]

    def embed(self, table: Tensor, ids: Sequence[int]) -> Tensor:
        """What enters the first layer, float32[T, hidden]."""
        return table[torch.tensor(ids)].float() * self._description.embedding_scale

    def final_norm(self, weight: Tensor) -> Norm:
        """What makes the output layer's inputs; ``weight`` float32[hidden] as it is stored."""
        return Norm(self._operations, weight + self._norm_offset, self._description.norm_eps)

    def run(
        self,
        layer: SourceLayer,
        products: Mapping[str, Product],
        hidden: Sequence[Tensor],
        wanted: Mapping[Stage, Wanted],
        at_stage: AtStage,
    ) -> None:
        """Pass every sequence of ``hidden`` [T, hidden] through a layer, in place, stage by stage.

        ``wanted`` says what ``at_stage`` is to be told of each stage's inputs.
        """
        built = self._build(layer, products)
        inputs = gather((built.attend_input(x) for x in hidden), wanted[Stage.QUERY_KEY_VALUE])
        at_stage(Stage.QUERY_KEY_VALUE, inputs)
        between = [self._attend(built.layer, x) for x in hidden]
        at_stage(Stage.ATTENTION_OUTPUT, gather(between, wanted[Stage.ATTENTION_OUTPUT]))
        for x, own in zip(hidden, between, strict=True):
            x += built.after_attention(own)
        del between
        at_stage(Stage.GATE_UP, gather((built.mlp_input(x) for x in hidden), wanted[Stage.GATE_UP]))
        between = [built.gated(x) for x in hidden]
        at_stage(Stage.DOWN, gather(between, wanted[Stage.DOWN]))
        for x, own in zip(hidden, between, strict=True):
            x += built.after_mlp(own)

    def _attend(self, layer: DecoderLayer, hidden: Tensor) -> Tensor:
        count = len(hidden)
        blocks = -(-count // BLOCK_SIZE)
        positions = torch.arange(count)
        batch = AttentionBatch(
            query_lens=[count],
            seq_lens=[count],
            block_tables=torch.arange(blocks, dtype=torch.int32)[None, :],
            slot_mapping=positions,
            positions=positions,
        )
        rotations: list[Rotation] = [table.at(positions) for table in self._tables]
        q, k, v = layer.queries_keys_values(hidden, None, rotations)
        plan = self._planner.attention.plan(batch, self._planner.spec, self._planner.encoding)
        return plan(layer.spec, self._cache, q, k, v)

    def _build(self, layer: SourceLayer, products: Mapping[str, Product]) -> _Built:
        names, description = layer.names, layer.description
        attention = description.attention
        shared = self._description.rotaries

        def projection(parts: Sequence[str]) -> Projection:
            own = tuple(products[name] for name in parts)
            return Projection(own, tuple(len(product.weight) for product in own))

        query_key = None
        if attention.query_key_norm is not None:
            query, key = self._norm(layer, names.query_norm), self._norm(layer, names.key_norm)
            if query is not None and key is not None:
                query_key = QueryKeyNorms(query, key, attention.query_key_norm is QueryKeyNorm.HEAD)
        return _Built(
            DecoderLayer(
                operations=self._operations,
                spec=attention_spec(attention),
                rotary=None if attention.rotary is None else shared.index(attention.rotary),
                attention_norm=self._norm(layer, names.attention_norm),
                qkv=projection(names.query_key_value),
                query_key_norm=query_key,
                attention_output=products[names.attention_output],
                attention_post_norm=self._norm(layer, names.attention_post_norm),
                mlp_norm=self._norm(layer, names.mlp_norm),
                gate_up=projection(names.gate_up),
                activation=description.mlp.activation,
                down=products[names.down],
                mlp_post_norm=self._norm(layer, names.mlp_post_norm),
            )
        )

    def _norm(self, layer: SourceLayer, name: str | None) -> Norm | None:
        if name is None:
            return None
        weight = layer.norms[name] + self._norm_offset
        return Norm(self._operations, weight, self._description.norm_eps)


@dataclass(frozen=True, slots=True)
class _Built:
    """A layer whose steps can be taken one by one."""

    layer: DecoderLayer

    def attend_input(self, hidden: Tensor) -> Tensor:
        norm = self.layer.attention_norm
        return hidden if norm is None else norm(hidden)

    def after_attention(self, attended: Tensor) -> Tensor:
        norm, delta = self.layer.attention_post_norm, self.layer.attention_output(attended)
        return delta if norm is None else norm(delta)

    def mlp_input(self, hidden: Tensor) -> Tensor:
        norm = self.layer.mlp_norm
        return hidden if norm is None else norm(hidden)

    def gated(self, hidden: Tensor) -> Tensor:
        gate_up = self.layer.gate_up(self.mlp_input(hidden))
        return self.layer.operations.gated(gate_up, self.layer.activation)

    def after_mlp(self, gated: Tensor) -> Tensor:
        norm, delta = self.layer.mlp_post_norm, self.layer.down(gated)
        return delta if norm is None else norm(delta)
