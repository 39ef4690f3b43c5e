"""Builds a decoder layer by layer: read, join, hand to a kernel, let go of the pages, next."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import AttentionSpec, CanonicalWeight, DenseWeight, Elementwise, Linear
from hundredfold.plugin.dequantize import dequantize
from hundredfold_worker.model.architectures import DescribedModel, LayerNames
from hundredfold_worker.model.canonical import join_rows, to_device
from hundredfold_worker.model.decoder import DecoderLayer, Norm, Projection
from hundredfold_worker.model.description import AttentionDescription, LayerDescription
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.memory import trim
from hundredfold_worker.model.selection import KernelChooser
from hundredfold_worker.model.weights import WeightReader


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before the first layer and after the last."""

    embedding: Tensor
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
    nbytes: int = 0

    def ends(self) -> Ends:
        """Embedding, final norm and output layer; a tied pair shares one table where the kernel can."""
        description, names = self.model.description, self.model.names
        shape = (description.vocab_size, description.hidden_size)
        table = self._table(self.reader.matrix(names.embedding, shape), names.embedding)
        self.nbytes += table.nbytes
        if description.tied_head:
            head = self._tied(table)
        else:
            head = self._linear(names.head, self.reader.matrix(names.head, shape), None)
        norm = self._norm(names.final_norm)
        self._let_go()
        return Ends(table, norm, head)

    def layer(self, index: int) -> DecoderLayer:
        """One layer. Raises ``ModelLoadError``."""
        layer, names = self.model.description.layers[index], self.model.names.layers[index]
        attention = layer.attention
        hidden = self.model.description.hidden_size
        width = attention.num_heads * attention.head_dim
        built = DecoderLayer(
            operations=self.operations,
            spec=attention_spec(attention),
            attention_norm=self._norm(names.attention_norm),
            qkv=self._qkv(attention, names, hidden),
            attention_output=self._single(names.attention_output, (hidden, width), attention.output_bias),
            mlp_norm=self._norm(names.mlp_norm),
            gate_up=self._gate_up(layer, names, hidden),
            activation=layer.mlp.activation,
            down=self._single(names.down, (hidden, layer.mlp.intermediate_size), layer.mlp.bias),
        )
        self._let_go()
        return built

    def _let_go(self) -> None:
        """Leave no trace of what was read in between."""
        self.reader.release()
        trim()

    def _qkv(self, attention: AttentionDescription, names: LayerNames, hidden: int) -> Projection:
        width = attention.num_heads * attention.head_dim
        kv_width = attention.num_kv_heads * attention.head_dim
        rows = {names.query: width, names.key: kv_width, names.value: kv_width}
        return self._projection(rows, hidden, attention.qkv_bias)

    def _gate_up(self, layer: LayerDescription, names: LayerNames, hidden: int) -> Projection:
        rows = dict.fromkeys((names.gate, names.up), layer.mlp.intermediate_size)
        return self._projection(rows, hidden, layer.mlp.bias)

    def _projection(self, rows: dict[str, int], columns: int, has_bias: bool) -> Projection:
        """Layers over one input; ``rows`` are their output features by name."""
        weights = [self.reader.matrix(name, (count, columns)) for name, count in rows.items()]
        biases = [self._bias(name, count) if has_bias else None for name, count in rows.items()]
        joined = join_rows(weights)
        if joined is None:
            parts = zip(rows, weights, biases, strict=True)
            return Projection(tuple(self._linear(name, weight, bias) for name, weight, bias in parts))
        present = [bias for bias in biases if bias is not None]
        return Projection((self._linear("+".join(rows), joined, _join(present)),))

    def _single(self, name: str, shape: tuple[int, int], has_bias: bool) -> Linear:
        bias = self._bias(name, shape[0]) if has_bias else None
        return self._linear(name, self.reader.matrix(name, shape), bias)

    def _linear(self, name: str, weight: CanonicalWeight, bias: Tensor | None) -> Linear:
        linear = self.kernels.prepare(name, weight, bias)
        self.nbytes += linear.nbytes
        return linear

    def _tied(self, table: Tensor) -> Linear:
        view = table.view(table.shape)
        kept = weakref.ref(view)
        linear = self.kernels.prepare(self.model.names.head, DenseWeight(view), None)
        del view
        if kept() is None:  # the kernel made an arrangement of its own, beside the table
            self.nbytes += linear.nbytes
        return linear

    def _table(self, weight: CanonicalWeight, name: str) -> Tensor:
        if weight.transform is not None:
            raise ModelLoadError(f"table '{name}' has an input transform, which has no meaning for a look-up")
        return dequantize(to_device(weight, self.device), self.dtype)

    def _norm(self, name: str) -> Norm:
        size = self.model.description.hidden_size
        weight = self.reader.vector(f"{name}.weight", size).to(self.device, torch.float32)
        self.nbytes += weight.nbytes
        return Norm(self.operations, weight, self.model.description.norm_eps)

    def _bias(self, name: str, size: int) -> Tensor:
        return self.reader.vector(f"{name}.bias", size).to(self.dtype)


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
