"""A model to be quantized, read a layer at a time: plain float matrices under the names of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from hundredfold.models import ModelFiles
from hundredfold.plugin import DenseWeight
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model.architectures import DescribedModel, LayerNames, ParameterNames, describe
from hundredfold_worker.model.checkpoint import Checkpoint, ConfigJson, open_checkpoint
from hundredfold_worker.model.description import LayerDescription, ModelDescription
from hundredfold_worker.model.memory import trim
from hundredfold_worker.model.selection import AUTO, choose_quantization
from hundredfold_worker.model.weights import WeightReader
from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.gguf_model import as_transformers, in_halves
from hundredfold_worker.quantize.recipe import Ends

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(slots=True)
class Matrix:
    """One linear layer."""

    weight: Tensor
    """float32[N, K]."""
    bias: Tensor | None
    """float32[N]."""


@dataclass(slots=True)
class SourceLayer:
    """One decoder layer, whose tensors are the caller's to change."""

    description: LayerDescription
    names: LayerNames
    matrices: dict[str, Matrix]
    """By name, in the order of the forward pass."""
    norms: dict[str, Tensor]
    """float32, as they are stored."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open model."""

    name: str
    files: ModelFiles
    description: ModelDescription
    names: ParameterNames
    """As they will be written."""
    config: Mapping[str, Any]
    """config.json of the dense model."""
    dtype: torch.dtype
    """Of the tensors that stay dense."""
    format: str
    """The weights' format."""
    _model: DescribedModel
    _reader: WeightReader
    _in_pairs: bool

    @property
    def ends(self) -> Ends:
        """The matrices outside of the layers."""
        return Ends(self.names.embedding, self.names.head, self.description.tied_head)

    def linear_names(self) -> list[str]:
        """Every linear layer inside of decoder layers, in order."""
        return [name for layer in self.names.layers for name in linear_names(layer)]

    def shapes(self, index: int) -> dict[str, tuple[int, int]]:
        """Rows and columns of one decoder layer's linear layers."""
        return _shapes(self.description.layers[index], self.names.layers[index], self.description.hidden_size)

    def layer(self, index: int) -> SourceLayer:
        """Read one decoder layer. Raises ``ModelLoadError``."""
        own, names = self._model.names.layers[index], self.names.layers[index]
        description = self.description.layers[index]
        attention, mlp = description.attention, description.mlp
        biased = dict.fromkeys(names.query_key_value, attention.qkv_bias)
        biased |= {names.attention_output: attention.output_bias, names.down: mlp.bias}
        biased |= dict.fromkeys(names.gate_up, mlp.bias)
        matrices = {}
        shapes = self.shapes(index)
        for stored, name in zip(linear_names(own), linear_names(names), strict=True):
            weight = self._plain(stored, shapes[name])
            bias = None
            if biased[name]:
                bias = self._reader.vector(f"{stored}.bias", shapes[name][0]).float()
            else:
                self._reader.no_bias(stored)
            matrices[name] = Matrix(weight, bias)
        if self._in_pairs:
            for name, heads in zip(
                names.query_key_value, (attention.num_heads, attention.num_kv_heads), strict=False
            ):
                matrix = matrices[name]
                matrix.weight = in_halves(matrix.weight, heads)
                matrix.bias = None if matrix.bias is None else in_halves(matrix.bias, heads)
        norms = {
            name: self._norm(stored, self._norm_size(field, description))
            for field, stored, name in _norm_names(own, names)
        }
        self._let_go()
        return SourceLayer(description, names, matrices, norms)

    def embedding(self) -> Tensor:
        """[vocabulary, hidden] in ``dtype``."""
        shape = (self.description.vocab_size, self.description.hidden_size)
        weight = self._reader.matrix(self._model.names.embedding, shape)
        table = dequantize(weight, self.dtype)
        self._let_go()
        return table

    def head(self) -> Tensor:
        """The output layer [vocabulary, hidden] in ``dtype``; where it is tied, the embedding."""
        if self.description.tied_head:
            return self.embedding()
        self._reader.no_bias(self._model.names.head)
        shape = (self.description.vocab_size, self.description.hidden_size)
        head = self._reader.matrix(self._model.names.head, shape)
        table = fold_transform(dequantize(head, self.dtype), head.transform)
        self._let_go()
        return table

    def final_norm(self) -> Tensor:
        """float32[hidden] of values that ``dtype`` holds."""
        norm = self._norm(self._model.names.final_norm, self.description.hidden_size)
        return norm.to(self.dtype).float()

    def _plain(self, name: str, shape: tuple[int, int]) -> Tensor:
        weight = self._reader.matrix(name, shape)
        plain = fold_transform(dequantize(weight, torch.float32), weight.transform)
        if not bool(torch.isfinite(plain).all()):
            raise QuantizeError(f"{self.files.path}: layer '{name}' holds numbers that are not finite")
        return plain.clone() if isinstance(weight, DenseWeight) else plain

    def _norm(self, name: str, size: int) -> Tensor:
        return self._reader.vector(f"{name}.weight", size).float().clone()

    def _norm_size(self, field: str, layer: LayerDescription) -> int:
        if field not in ("query_norm", "key_norm"):
            return self.description.hidden_size
        attention = layer.attention
        if attention.query_key_norm is not None and attention.query_key_norm.value == "head":
            return attention.head_dim
        heads = attention.num_heads if field == "query_norm" else attention.num_kv_heads
        return heads * attention.head_dim

    def _let_go(self) -> None:
        self._reader.release()
        trim()


def open_source(files: ModelFiles, registries: Mapping[str, Registry]) -> Source:
    """Open a model; no tensor is read. Raises ``ModelLoadError``, ``ModelError`` or ``QuantizeError``."""
    checkpoint = open_checkpoint(files)
    model = describe(checkpoint)
    method, chosen = choose_quantization(registries, checkpoint.info, AUTO)
    reader = WeightReader(checkpoint, method, model.names)
    description, names, in_pairs = model.description, model.names, False
    if isinstance(checkpoint.configuration, ConfigJson):
        config: dict[str, Any] = dict(checkpoint.configuration.values)
        config.pop("quantization_config", None)
        dtype = _stored_dtype(checkpoint, f"{names.final_norm}.weight")
    else:
        turned = as_transformers(checkpoint.configuration, model)
        config, description, names, in_pairs = (
            turned.config,
            turned.description,
            turned.names,
            turned.in_pairs,
        )
        dtype = torch.bfloat16
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    return Source(
        files.name, files, description, names, config, dtype, chosen.chosen, model, reader, in_pairs
    )


def linear_names(layer: LayerNames) -> list[str]:
    """A layer's linear layers in the order of the forward pass."""
    return [*layer.query_key_value, layer.attention_output, *layer.gate_up, layer.down]


def _norm_names(own: LayerNames, written: LayerNames) -> Iterator[tuple[str, str, str]]:
    """Field, stored name and written name of every norm that is there."""
    for field in fields(LayerNames):
        stored = getattr(own, field.name)
        if field.name.endswith("norm") and stored is not None:
            yield field.name, stored, getattr(written, field.name)


def _shapes(layer: LayerDescription, names: LayerNames, hidden: int) -> dict[str, tuple[int, int]]:
    attention, mlp = layer.attention, layer.mlp
    width, kv_width = (heads * attention.head_dim for heads in (attention.num_heads, attention.num_kv_heads))
    shapes: dict[str, tuple[int, int]] = {}
    rows: tuple[int, ...]
    for parts, rows in (
        (names.query_key_value, (width, kv_width, kv_width)),
        (names.gate_up, (mlp.intermediate_size,) * 2),
    ):
        own = (sum(rows),) if len(parts) == 1 else rows
        shapes.update({name: (count, hidden) for name, count in zip(parts, own, strict=True)})
    shapes[names.attention_output] = (hidden, width)
    shapes[names.down] = (hidden, mlp.intermediate_size)
    return shapes


def _stored_dtype(checkpoint: Checkpoint, name: str) -> torch.dtype:
    """The type of a tensor that is dense in every format; bf16 where it is none of the usual."""
    if name not in checkpoint.tensors.names():
        return torch.bfloat16
    return DTYPES.get(checkpoint.tensors.describe(name).encoding, torch.bfloat16)
