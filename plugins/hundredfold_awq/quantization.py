"""AWQ layers of version gemm as grouped integers. Layout: https://github.com/casper-hansen/AutoAWQ

``qweight`` holds the codes of an input feature as a run of bits along its row of words, ``qzeros`` the zero
points of a group in the same way; with 4 bits each eight output features lie in an order of their own.
``scales`` is a float for each group and output feature: ``w[n, k] = scale * (code - zero)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    GroupedIntWeight,
    LayerRequest,
    Reasons,
    TensorSource,
    Zero,
)
from hundredfold.plugin.bit_stream import unpack
from hundredfold.plugin.layer_rules import LayerRules
from hundredfold.plugin.reading import FLOATS, read_scales, read_tensor
from hundredfold_awq.config import LayerFormat, read_config, refusals

ORDERED_BITS = 4
RUN = 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each feature of a run of eight 4-bit codes lies: those in even places come first."""


class Awq:
    """Checkpoints of AutoAWQ, and of others in its layout."""

    name = "awq"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """The section's own words decide."""
        if checkpoint.container != "safetensors":
            return [f"reads safetensors, not {checkpoint.container}"]
        return refusals(checkpoint.quantization_config or {})

    def bind(self, checkpoint: CheckpointInfo) -> AwqMethod:
        """The method. Raises ``ValueError`` naming the key at fault."""
        return AwqMethod(read_config(checkpoint.quantization_config or {}))


class AwqMethod:
    """One checkpoint's layers. Which of them are quantized, their tensors say."""

    def __init__(self, layers: LayerRules[LayerFormat]) -> None:
        self._layers = layers

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer that no rule leaves as it was."""
        return self._layers.of(layer.name) is not None

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer, plain where it has no ``qweight``. Raises ``ValueError`` naming layer and tensor."""
        names = tensors.names()
        if f"{layer.name}.qweight" not in names and f"{layer.name}.weight" in names:
            return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))
        form = self._layers.of(layer.name)
        if form is None:
            raise ValueError(f"layer '{layer.name}': a rule leaves it as it was, its tensors do not")
        return _load(layer, tensors, form)


def _load(layer: LayerRequest, tensors: TensorSource, form: LayerFormat) -> GroupedIntWeight:
    rows, columns = layer.shape
    if form.bits == ORDERED_BITS and rows % RUN:
        raise ValueError(f"layer '{layer.name}': {rows} output features are no multiple of {RUN}")
    group = columns if form.group_size == -1 else min(form.group_size, columns)
    groups = -(-columns // group)
    return GroupedIntWeight(
        codes=_features(layer, tensors, "qweight", columns, form.bits),
        scales=read_scales(layer, tensors, "scales", shape=(groups, rows)).T.contiguous(),
        zeros=_features(layer, tensors, "qzeros", groups, form.bits),
        bits=form.bits,
        group_size=group,
        zero=Zero.POINT,
    )


def _features(layer: LayerRequest, tensors: TensorSource, part: str, count: int, bits: int) -> Tensor:
    """The codes of ``count`` packed rows, uint8[output features, count]."""
    features = layer.shape[0]
    packed = read_tensor(layer, tensors, part, shape=(count, -(-features * bits // 32)), encodings=("I32",))
    codes = unpack(packed.view(torch.uint8), bits, features)
    if bits == ORDERED_BITS:
        codes = codes.view(count, -1, RUN)[..., PLACES].view(count, features)
    return codes.T.contiguous()
