"""AWQ layers of version gemm as grouped integers. Layout: https://github.com/casper-hansen/AutoAWQ

``qweight`` holds the codes of an input feature as a run of bits along its row of words, ``qzeros`` the zero
points of a group in the same way; with 4 bits each eight output features lie in an order of their own.
``scales`` is a float for each group and output feature: ``w[n, k] = scale * (code - zero)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import GroupedIntWeight, LayerRequest, TensorSource, Zero
from hundredfold.plugin.bit_stream import unpack
from hundredfold.plugin.reading import read_scales, read_tensor
from hundredfold_awq.config import LayerFormat

ORDERED_BITS = 4
RUN = 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each feature of a run of eight 4-bit codes lies: those in even places come first."""


def read_layer(layer: LayerRequest, tensors: TensorSource, form: LayerFormat) -> GroupedIntWeight:
    """The layer. Raises ``ValueError`` naming layer and tensor."""
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
