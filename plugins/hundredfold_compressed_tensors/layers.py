"""A layer's tensors as a canonical weight, one reader for each format.

Formats: https://github.com/vllm-project/compressed-tensors (``compressors``), version 0.19.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hundredfold.plugin import (
    CanonicalWeight,
    ChannelInt8Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    InputTransform,
    LayerRequest,
    Permute,
    TensorSource,
    Zero,
)
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.float8 import read_float8_codes
from hundredfold.plugin.reading import read_scales, read_tensor
from hundredfold_compressed_tensors.config import LEAST_GROUP, Format, Strategy, WeightArgs
from hundredfold_compressed_tensors.packing import power_of_two, unpack, unpack_columns, unpack_fp4, words_for


def _plain(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> CanonicalWeight:
    """``weight`` holds a number in a byte: int8, or e4m3."""
    if args.floating:
        return _float8(layer, tensors, args)
    codes = read_tensor(layer, tensors, encodings=("I8",))
    zeros = None
    if not args.symmetric:
        zeros = read_tensor(
            layer, tensors, "weight_zero_point", shape=_scales_shape(layer, tensors, args), encodings=("I8",)
        )
    else:
        _no_zero_point(layer, tensors)
    return _integers(layer, tensors, args, codes, zeros)


def _packed(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> CanonicalWeight:
    """``weight_packed``: integers of 2 to 8 bits side by side along the columns, each plus 2**(bits - 1).

    Zero points are packed the same way along the rows.
    """
    rows, columns = layer.shape
    stated = read_tensor(layer, tensors, "weight_shape", shape=(2,), encodings=("I64", "I32")).tolist()
    if stated != [rows, columns]:
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.weight_shape' says {stated}, "
            f"expected is {list(layer.shape)}"
        )
    shape = (rows, words_for(columns, args.bits))
    words = read_tensor(layer, tensors, "weight_packed", shape=shape, encodings=("I32",))
    codes = unpack(words, columns, args.bits)
    if args.symmetric:
        _no_zero_point(layer, tensors)
        return _integers(layer, tensors, args, _signed(codes, args.bits), None)
    groups = _scales_shape(layer, tensors, args)[1:]
    where = (words_for(rows, args.bits), *groups)
    packed = read_tensor(layer, tensors, "weight_zero_point", shape=where, encodings=("I32",))
    return _integers(layer, tensors, args, codes, unpack_columns(packed, rows, args.bits))


def _integers(
    layer: LayerRequest, tensors: TensorSource, args: WeightArgs, codes: Tensor, zeros: Tensor | None
) -> CanonicalWeight:
    """Codes int8, or uint8 as far as zero points are; scales are read here."""
    rows, columns = layer.shape
    low, high = (-(1 << args.bits - 1), (1 << args.bits - 1) - 1)
    if codes.dtype == torch.int8 and args.bits < 8 and not bool(((codes >= low) & (codes <= high)).all()):
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.weight' leaves the {args.bits} bits that are stated"
        )
    scales = read_scales(layer, tensors, "weight_scale", shape=_scales_shape(layer, tensors, args))
    if args.strategy is Strategy.TENSOR:
        scales = scales.reshape(1, 1).expand(rows, 1)
        zeros = None if zeros is None else zeros.reshape(1, 1).expand(rows, 1)
    codes, transform = _in_groups(layer, tensors, args, codes)
    if zeros is None and args.bits == 8 and args.group_size is None:
        return ChannelInt8Weight(codes, scales.float().reshape(rows).contiguous())
    weight = GroupedIntWeight(
        codes=codes,
        scales=scales.contiguous(),
        zeros=None if zeros is None else zeros.to(scales.dtype).contiguous(),
        bits=args.bits,
        group_size=min(args.group_size or columns, columns),
        zero=Zero.POINT,
        transform=transform,
    )
    if weight.group_size < LEAST_GROUP:
        return DenseWeight(fold_transform(dequantize(weight, torch.float32), transform))
    return weight


def _in_groups(
    layer: LayerRequest, tensors: TensorSource, args: WeightArgs, codes: Tensor
) -> tuple[Tensor, InputTransform | None]:
    """Codes with the columns of a group side by side, as ``weight_g_idx`` says where there is one."""
    columns, name = layer.shape[1], f"{layer.name}.weight_g_idx"
    if args.group_size is None or not (args.ordered or name in tensors.names()):
        return codes, None
    index = read_tensor(layer, tensors, "weight_g_idx", shape=(columns,), encodings=("I32", "I64"))
    wanted = torch.arange(columns) // args.group_size
    if bool((index == -1).all()) or torch.equal(index.long(), wanted):
        return codes, None
    order = index.argsort(stable=True)
    if not torch.equal(index[order].long(), wanted):
        raise ValueError(
            f"layer '{layer.name}': tensor '{name}' does not give each group {args.group_size} columns"
        )
    return codes[:, order].contiguous(), Permute(order)


def _float8(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> Float8Weight:
    """e4m3 with a scale for the matrix, each row, each block, or each run of columns in a row."""
    codes = read_float8_codes(layer, tensors, encodings=("F8_E4M3",))
    _no_zero_point(layer, tensors)
    scales = read_scales(layer, tensors, "weight_scale", shape=_scales_shape(layer, tensors, args)).float()
    if args.strategy is Strategy.TENSOR:
        scales = scales.reshape(1, 1).expand(len(codes), 1)  # so that rows of several layers can be joined
    return Float8Weight(codes, scales.contiguous(), _block(layer, args))


def _mxfp8(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> Float8Weight:
    """e4m3 with a power of two for each run of columns."""
    codes = read_float8_codes(layer, tensors, encodings=("F8_E4M3",))
    return Float8Weight(codes, _powers(layer, tensors, args), _block(layer, args))


def _nvfp4(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> DenseWeight:
    """e2m1 with an e4m3 scale for each run of columns and one divisor of all scales."""
    shape = _scales_shape(layer, tensors, args)
    scales = read_scales(layer, tensors, "weight_scale", shape=shape, encodings=("F8_E4M3",)).float()
    scales /= read_scales(layer, tensors, "weight_global_scale", shape=(1,)).float()
    if not bool(scales.isfinite().all()):
        raise ValueError(f"layer '{layer.name}': tensor '{layer.name}.weight_global_scale' divides by 0")
    return _fp4(layer, tensors, args, scales)


def _mxfp4(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> DenseWeight:
    """e2m1 with a power of two for each run of columns."""
    return _fp4(layer, tensors, args, _powers(layer, tensors, args))


def _fp4(layer: LayerRequest, tensors: TensorSource, args: WeightArgs, scales: Tensor) -> DenseWeight:
    """``value * scale`` in float32: no kernel keeps 4-bit floats."""
    rows, columns = layer.shape
    if columns % 2:
        raise ValueError(f"layer '{layer.name}': {columns} columns are no whole bytes of 4-bit floats")
    packed = read_tensor(layer, tensors, "weight_packed", shape=(rows, columns // 2), encodings=("U8",))
    matrix = unpack_fp4(packed)
    group = min(args.group_size or columns, columns)
    matrix *= scales.repeat_interleave(group, dim=1)[:, :columns]
    return DenseWeight(matrix)


def _powers(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> Tensor:
    shape = _scales_shape(layer, tensors, args)
    powers = power_of_two(read_tensor(layer, tensors, "weight_scale", shape=shape, encodings=("U8",)))
    if not bool(powers.isfinite().all()):
        raise ValueError(f"layer '{layer.name}': tensor '{layer.name}.weight_scale' holds exponents of 255")
    return powers


def _scales_shape(layer: LayerRequest, tensors: TensorSource, args: WeightArgs) -> tuple[int, ...]:
    """What ``weight_scale`` has to be."""
    rows, columns = layer.shape
    if args.strategy is Strategy.TENSOR:
        # One number, written in either way.
        name = f"{layer.name}.weight_scale"
        return () if name in tensors.names() and tensors.describe(name).shape == () else (1,)
    if args.block is not None:
        return -(-rows // args.block[0]), -(-columns // args.block[1])
    return rows, (1 if args.group_size is None else -(-columns // args.group_size))


def _block(layer: LayerRequest, args: WeightArgs) -> tuple[int, int] | None:
    """Rows and columns that share a scale, no more than the layer has."""
    block = args.block if args.group_size is None else (1, args.group_size)
    return None if block is None else (min(block[0], layer.shape[0]), min(block[1], layer.shape[1]))


def _no_zero_point(layer: LayerRequest, tensors: TensorSource) -> None:
    """Older writers add zero points of 0 to symmetric weights; any other contradicts the configuration."""
    name = f"{layer.name}.weight_zero_point"
    if name in tensors.names() and bool(tensors.describe(name).raw.any()):
        raise ValueError(f"layer '{layer.name}': tensor '{name}' is not 0, though the weights are symmetric")


def _signed(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes less 2**(bits - 1), int8."""
    return (codes ^ 0x80).view(torch.int8) if bits == 8 else codes.view(torch.int8) - (1 << bits - 1)


Reader = Callable[[LayerRequest, TensorSource, WeightArgs], CanonicalWeight]

READERS: Mapping[Format, Reader] = {
    Format.INT: _plain,
    Format.FLOAT: _plain,
    Format.NAIVE: _plain,
    Format.PACK: _packed,
    Format.NVFP4: _nvfp4,
    Format.MXFP4: _mxfp4,
    Format.MXFP8: _mxfp8,
}
