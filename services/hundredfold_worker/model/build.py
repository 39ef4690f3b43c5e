"""Builds a decoder layer by layer: read, join, hand to a kernel, let go of the pages, next."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hundredfold.plugin import AttentionSpec, CanonicalWeight, DenseWeight, Elementwise, Linear
from hundredfold_worker.model.architectures import DescribedModel, LayerNames
from hundredfold_worker.model.canonical import join_rows, to_device
from hundredfold_worker.model.decoder import DecoderLayer, Norm, Projection, QueryKeyNorms
from hundredfold_worker.model.description import (
    AttentionDescription,
    NormPlacement,
    QueryKeyNorm,
    RotaryDescription,
)
from hundredfold_worker.model.embedding import Embedding, make_embedding
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.memory import trim
from hundredfold_worker.model.on_the_fly import OnTheFly, plain_matrix
from hundredfold_worker.model.selection import KernelChooser
from hundredfold_worker.model.weights import WeightReader


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before the first layer and after the last."""

    embedding: Embedding
    final_norm: Norm
    head: Linear


@dataclass(slots=True)
class Builder:
    """Turns a checkpoint's tensors into parts that run. ``nbytes`` counts what they occupy."""

    model: DescribedModel
    reader: WeightReader
    kernels: KernelChooser
    operations: Elementwise
    device: torch.device
    dtype: torch.dtype
    rotaries: Sequence[RotaryDescription]
    """Every kind of rotation; a layer refers to its own by position."""
    on_the_fly: OnTheFly | None = None
    nbytes: int = 0

    def ends(self) -> Ends:
        """Embedding, final norm and output layer; a tied pair shares one table where the kernel can."""
        description, names = self.model.description, self.model.names
        shape = (description.vocab_size, description.hidden_size)
        embedding = self._embedding(self.reader.matrix(names.embedding, shape), names.embedding)
        self.nbytes += embedding.nbytes
        if not description.tied_head:
            head = self._single(names.head, shape, False)
        elif (own := self._converted(names.head, embedding.weight)) is not None:
            head = self._linear(names.head, own, None)
        else:
            head = self._tied(embedding)
        norm = self._norm(names.final_norm, description.hidden_size)
        self._let_go()
        return Ends(embedding, norm, head)

    def layer(self, index: int) -> DecoderLayer:
        """One layer. Raises ``ModelLoadError``."""
        layer, names = self.model.description.layers[index], self.model.names.layers[index]
        attention, mlp = layer.attention, layer.mlp
        hidden = self.model.description.hidden_size
        width, kv_width = (
            heads * attention.head_dim for heads in (attention.num_heads, attention.num_kv_heads)
        )
        before, after = layer.norms is not NormPlacement.AFTER, layer.norms is not NormPlacement.BEFORE
        built = DecoderLayer(
            operations=self.operations,
            spec=attention_spec(attention),
            rotary=None if attention.rotary is None else self.rotaries.index(attention.rotary),
            attention_norm=self._norm_if(before, names.attention_norm, hidden),
            qkv=self._projection(
                names.query_key_value, (width, kv_width, kv_width), hidden, attention.qkv_bias
            ),
            query_key_norm=self._query_key_norm(attention, names),
            attention_output=self._single(names.attention_output, (hidden, width), attention.output_bias),
            attention_post_norm=self._norm_if(after, names.attention_post_norm, hidden),
            mlp_norm=self._norm_if(before, names.mlp_norm, hidden),
            gate_up=self._projection(names.gate_up, (mlp.intermediate_size,) * 2, hidden, mlp.bias),
            activation=mlp.activation,
            down=self._single(names.down, (hidden, mlp.intermediate_size), mlp.bias),
            mlp_post_norm=self._norm_if(after, names.mlp_post_norm, hidden),
        )
        self._let_go()
        return built

    def _let_go(self) -> None:
        """Leave no trace of what was read in between."""
        self.reader.release()
        trim()

    def _projection(
        self, names: Sequence[str], rows: Sequence[int], columns: int, has_bias: bool
    ) -> Projection:
        """Layers over one input with these output features; a single name holds all of them."""
        parts = list(zip(names, (sum(rows),) if len(names) == 1 else rows, strict=True))
        if len(names) == 1 and self._differ(names[0]):
            return self._taken_apart(names[0], rows, columns, has_bias)
        weights = [self._read(name, (count, columns)) for name, count in parts]
        biases = [self._bias(name, count, has_bias) for name, count in parts]
        joined = weights[0] if len(weights) == 1 else join_rows(weights)
        if joined is None:
            own = zip(names, weights, biases, strict=True)
            linears = tuple(self._linear(name, weight, bias) for name, weight, bias in own)
            return Projection(linears, tuple(count for _, count in parts))
        present = [bias for bias in biases if bias is not None]
        return Projection((self._linear("+".join(names), joined, _join(present)),), (sum(rows),))

    def _taken_apart(self, name: str, rows: Sequence[int], columns: int, has_bias: bool) -> Projection:
        """A joined layer whose parts get different formats."""
        matrix = plain_matrix(self.reader.matrix(name, (sum(rows), columns)))
        bias = self._bias(name, sum(rows), has_bias)
        linears, first = [], 0
        for index, (count, excepted) in enumerate(zip(rows, self._excepted(name), strict=True)):
            part = slice(first, first + count)
            first += count
            weight: CanonicalWeight = DenseWeight(matrix[part])
            if not excepted:
                weight = self._converted(name, weight, whole=False) or weight
            linears.append(self._linear(f"{name}[{index}]", weight, None if bias is None else bias[part]))
        return Projection(tuple(linears), tuple(rows))

    def _single(self, name: str, shape: tuple[int, int], has_bias: bool) -> Linear:
        bias = self._bias(name, shape[0], has_bias)
        return self._linear(name, self._read(name, shape), bias)

    def _read(self, name: str, shape: tuple[int, int]) -> CanonicalWeight:
        """A linear layer's weight as it is to be computed."""
        weight = self.reader.matrix(name, shape)
        return self._converted(name, weight) or weight

    def _converted(self, name: str, weight: CanonicalWeight, *, whole: bool = True) -> CanonicalWeight | None:
        """The weight quantized; ``None`` where it stays as it is. ``whole``: of all parts of the layer."""
        if self.on_the_fly is None or (whole and any(self._excepted(name))):
            return None
        return self.on_the_fly.convert(name, weight)

    def _excepted(self, name: str) -> tuple[bool, ...]:
        return () if self.on_the_fly is None else self.on_the_fly.excepts(name)

    def _differ(self, name: str) -> bool:
        return len(set(self._excepted(name))) > 1

    def _linear(self, name: str, weight: CanonicalWeight, bias: Tensor | None) -> Linear:
        linear = self.kernels.prepare(name, weight, bias)
        self.nbytes += linear.nbytes
        return linear

    def _tied(self, embedding: Embedding) -> Linear:
        weight = embedding.weight
        view = (weight.weight if isinstance(weight, DenseWeight) else weight.codes).view(len(embedding), -1)
        kept = weakref.ref(view)
        tied = DenseWeight(view) if isinstance(weight, DenseWeight) else replace(weight, codes=view)
        linear = self.kernels.prepare(self.model.names.head, tied, None)
        del view, tied
        if kept() is None:  # the kernel made an arrangement of its own, beside the table
            self.nbytes += linear.nbytes
        return linear

    def _embedding(self, weight: CanonicalWeight, name: str) -> Embedding:
        if weight.transform is not None:
            raise ModelLoadError(f"table '{name}' has an input transform, which has no meaning for a look-up")
        return make_embedding(to_device(weight, self.device), self.dtype)

    def _query_key_norm(self, attention: AttentionDescription, names: LayerNames) -> QueryKeyNorms | None:
        kind = attention.query_key_norm
        if kind is None:
            return None
        by_head = kind is QueryKeyNorm.HEAD
        heads = (1, 1) if by_head else (attention.num_heads, attention.num_kv_heads)
        query, key = (
            self._norm(_named(name), count * attention.head_dim)
            for name, count in zip((names.query_norm, names.key_norm), heads, strict=True)
        )
        return QueryKeyNorms(query, key, by_head)

    def _norm_if(self, there: bool, name: str | None, size: int) -> Norm | None:
        return self._norm(_named(name), size) if there else None

    def _norm(self, name: str, size: int) -> Norm:
        stored = self.reader.vector(f"{name}.weight", size)
        weight = (stored.float() + self.model.names.norm_offset).to(self.device)
        self.nbytes += weight.nbytes
        return Norm(self.operations, weight, self.model.description.norm_eps)

    def _bias(self, name: str, size: int, expected: bool) -> Tensor | None:
        if expected:
            return self.reader.vector(f"{name}.bias", size).to(self.dtype)
        self.reader.no_bias(name)
        return None


def attention_spec(attention: AttentionDescription) -> AttentionSpec:
    """What the attention backend has to know of a layer."""
    return AttentionSpec(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        scale=attention.scale,
        sliding_window=attention.sliding_window,
        softcap=attention.softcap,
    )


def _join(biases: Sequence[Tensor]) -> Tensor | None:
    return torch.cat(list(biases)) if biases else None


def _named(name: str | None) -> str:
    if name is None:
        raise ModelLoadError("the description has a norm that the architecture gives no name")
    return name
