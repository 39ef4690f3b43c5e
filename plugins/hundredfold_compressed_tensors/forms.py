"""What a scheme makes of a layer, and the bytes of its tensors, told without reading one."""

from __future__ import annotations

from hundredfold.plugin import DenseWeight, LayerOutline, WeightForm, Zero
from hundredfold.plugin.forms import HALF, by_channel, float8, grouped, words
from hundredfold_compressed_tensors.config import LEAST_GROUP, Format, Strategy, WeightArgs

SHAPE = 16
"""Bytes of ``weight_shape``."""


def form_of(layer: LayerOutline, found: Format, args: WeightArgs) -> WeightForm:
    """The form of a layer that the scheme quantizes."""
    rows, columns = layer.shape
    scales = _scales(layer, args)
    if found in (Format.NVFP4, Format.MXFP4):
        stored = rows * (columns // 2) + scales + layer.nbytes("weight_global_scale", 4)
        return WeightForm(f"fp4 g{args.group_size}", DenseWeight, stored)
    if found is Format.MXFP8:
        return float8(f"g{args.group_size}", rows * columns + scales)
    if args.floating:
        by = f"by {args.strategy}" if args.block is None else "{}x{}".format(*args.block)
        return float8(by, rows * columns + layer.nbytes("weight_scale", 2 * scales))
    packed = found is Format.PACK
    stored = rows * words(columns, args.bits) + SHAPE if packed else rows * columns
    stored += layer.nbytes("weight_scale", 2 * scales)
    if not args.symmetric:
        stored += words(rows, args.bits) * _groups(layer, args) if packed else scales
    if args.ordered and args.group_size is not None:
        stored += layer.nbytes("weight_g_idx", 4 * columns)
    if args.symmetric and args.bits == 8 and args.group_size is None:
        return by_channel(stored)
    if args.group_size is not None and min(args.group_size, columns) < LEAST_GROUP:
        return WeightForm(f"int {args.bits}-bit g{args.group_size}", DenseWeight, stored)
    zero = None if args.symmetric or args.strategy is Strategy.TENSOR else Zero.POINT
    half = layer.is_half("weight_scale", usual=layer.floats == HALF)
    return grouped("int", layer, args.bits, args.group_size, stored, half_scales=half, zero=zero)


def _scales(layer: LayerOutline, args: WeightArgs) -> int:
    """Scales of the matrix."""
    rows, columns = layer.shape
    if args.strategy is Strategy.TENSOR:
        return 1
    if args.block is not None:
        return -(-rows // args.block[0]) * -(-columns // args.block[1])
    return rows * _groups(layer, args)


def _groups(layer: LayerOutline, args: WeightArgs) -> int:
    """Groups of a row."""
    return 1 if args.group_size is None else -(-layer.shape[1] // args.group_size)
