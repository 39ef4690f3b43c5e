"""Reads nibble checkpoints. A layer's weight ``[N, K]`` is stored as two tensors:

``<layer>.nibbles`` uint8[N, K / 2]: two codes a byte, the even column in the low half;
``<layer>.scales`` float16[N, K / 32]: a scale for 32 columns of a row; weights are ``scale * (code - 8)``.
"""

import torch

from hundredfold.plugin import (
    CanonicalWeight,
    CheckpointInfo,
    GroupedIntWeight,
    LayerOutline,
    LayerRequest,
    QuantizationMethod,
    Reasons,
    TensorSource,
    WeightForm,
    Zero,
)
from hundredfold.plugin.forms import grouped
from hundredfold.plugin.reading import read_tensor

GROUP = 32


class Nibble:
    """Checkpoints written by `python -m nibble.write`."""

    name = "nibble"
    api_version = 1  # the one this was written for; hundredfold refuses the plugin when it has moved on

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """The checkpoint's own words decide."""
        config = checkpoint.quantization_config or {}
        if checkpoint.container != "safetensors" or config.get("quant_method") != "nibble":
            return ["reads safetensors whose quant_method is nibble"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> QuantizationMethod:
        """The method; `modules_to_not_convert` of config.json names the layers that stayed floats."""
        config = checkpoint.quantization_config or {}
        return NibbleMethod(frozenset(config.get("modules_to_not_convert") or ()))


class NibbleMethod:
    """One checkpoint's layers."""

    def __init__(self, dense: frozenset[str]) -> None:
        self.dense = dense

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer but those that stayed floats."""
        return layer.name not in self.dense

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer as grouped integers. Raises ``ValueError`` naming layer and tensor."""
        rows, columns = layer.shape
        packed = read_tensor(layer, tensors, "nibbles", shape=(rows, columns // 2), encodings=("U8",))
        scales = read_tensor(layer, tensors, "scales", shape=(rows, columns // GROUP), encodings=("F16",))
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        return GroupedIntWeight(
            codes=codes.to(torch.int8) - 8,
            scales=scales,
            zeros=None,
            bits=4,
            group_size=GROUP,
            zero=Zero.POINT,
        )

    def form(self, layer: LayerOutline) -> WeightForm:
        """What `load` will return and the bytes it will read, for `hundredfold estimate`."""
        rows, columns = layer.shape
        return grouped("nibble", layer, 4, GROUP, rows * columns // 2 + rows * (columns // GROUP) * 2)
