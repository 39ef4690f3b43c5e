"""GPTQ layers as grouped integers. Layout: https://github.com/AutoGPTQ/AutoGPTQ and https://github.com/ModelCloud/GPTQModel

``qweight`` holds the codes of an output feature as a run of bits down its column of words, ``qzeros`` the
zero points of a group along its row, ``scales`` a float for each group and output feature, ``g_idx`` the
group of each input feature: ``w[n, k] = scales[g_idx[k], n] * (code[n, k] - zero[g_idx[k], n])``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hundredfold.plugin import (
    CanonicalWeight,
    DenseWeight,
    GroupedIntWeight,
    LayerRequest,
    Permute,
    TensorSource,
    Zero,
)
from hundredfold.plugin.bit_stream import unpack
from hundredfold.plugin.reading import read_scales, read_tensor
from hundredfold_gptq.config import GptqConfig, LayerFormat

WORDS = ("I32",)
WORD = 32


def read_layer(
    layer: LayerRequest, tensors: TensorSource, form: LayerFormat, config: GptqConfig
) -> CanonicalWeight:
    """The layer. Raises ``ValueError`` naming layer and tensor."""
    rows, columns = layer.shape
    group = columns if form.group_size == -1 else min(form.group_size, columns)
    groups = -(-columns // group)
    words = (-(-columns * form.bits // WORD), rows)
    packed = read_tensor(layer, tensors, "qweight", shape=words, encodings=WORDS)
    codes = unpack(packed.T.contiguous().view(torch.uint8), form.bits, columns)
    del packed
    scales = read_scales(layer, tensors, "scales", shape=(groups, rows)).T.contiguous()
    zeros = _zeros(layer, tensors, form, config, groups).T.contiguous()
    _check_symmetry(layer, form, zeros)
    weight = GroupedIntWeight(codes, scales, zeros, form.bits, group, Zero.POINT)
    owner = _owner(layer, tensors, config, group)
    return weight if owner is None else _in_groups(weight, owner)


def _zeros(
    layer: LayerRequest, tensors: TensorSource, form: LayerFormat, config: GptqConfig, groups: int
) -> Tensor:
    """Zero points uint8[groups, rows].

    Version 1 stores them less one. Of a zero point of 0 that leaves the largest code there is, and writers
    differ in what else it does: GPTQModel subtracts from whole words of 2, 4 and 8-bit codes, so that the
    zero point beside it loses one more; others lose nothing. Adding in the same way gives back the truth.
    """
    rows, bits = layer.shape[0], form.bits
    packed = read_tensor(layer, tensors, "qzeros", shape=(groups, -(-rows * bits // WORD)), encodings=WORDS)
    if not config.less_one:
        return unpack(packed.view(torch.uint8), bits, rows)
    if config.less_one_by_words and WORD % bits == 0:
        ones = sum(1 << place for place in range(0, WORD, bits))
        return unpack((packed + ones).view(torch.uint8), bits, rows)
    return unpack(packed.view(torch.uint8), bits, rows) + 1 & (1 << bits) - 1


def _check_symmetry(layer: LayerRequest, form: LayerFormat, zeros: Tensor) -> None:
    """Refuse zero points of the other version, or of the wrong offsets that GPTQModel once had for 3 bits.

    Others that are not the middle are believed: then ``sym`` is what is wrong.
    """
    middle, first = 1 << form.bits - 1, int(zeros[0, 0])
    if not form.symmetric or bool((zeros == middle).all()):
        return
    if form.bits == 3 or bool((zeros == first).all()):
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.qzeros' gives zero points like {first}, but 'sym' "
            f"is true, which makes all of them {middle}: is 'checkpoint_format' wrong?"
        )


def _owner(layer: LayerRequest, tensors: TensorSource, config: GptqConfig, group: int) -> Tensor | None:
    """The group of each column, int64[K]; ``None`` where they lie in order."""
    columns = layer.shape[1]
    if f"{layer.name}.g_idx" not in tensors.names():
        if config.act_order:
            raise ValueError(
                f"layer '{layer.name}': tensor '{layer.name}.g_idx' is missing, and desc_act is true: "
                "nothing says which column belongs to which group"
            )
        return None
    owner = read_tensor(layer, tensors, "g_idx", shape=(columns,), encodings=("I32", "I64")).long()
    in_order = torch.arange(columns) // group
    least, most, last = int(owner.min()), int(owner.max()), int(in_order[-1])
    if least < 0 or most > last:
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.g_idx' names group {least if least < 0 else most}, "
            f"there are 0 to {last}"
        )
    return None if torch.equal(owner, in_order) else owner


def _in_groups(weight: GroupedIntWeight, owner: Tensor) -> CanonicalWeight:
    """The weight with the columns of a group side by side, and the input permuted alike.

    Groups that are not of one size have no such form; those become floats.
    """
    index = torch.argsort(owner, stable=True)
    if torch.equal(owner[index], torch.arange(len(owner)) // weight.group_size):
        return replace(weight, codes=weight.codes[:, index], transform=Permute(index))
    zeros = weight.zeros
    matrix = weight.codes.float()
    if zeros is not None:
        matrix -= zeros.float()[:, owner]
    return DenseWeight(matrix.mul_(weight.scales.float()[:, owner]))
