"""What a layer is, by its tensors where their headers are here, else by the flags of the section."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from hundredfold.plugin import LayerOutline, LayerRole, WeightForm
from hundredfold.plugin.forms import by_channel, codebook, is_listed
from hundredfold_bitsandbytes.codebooks import CODEBOOKS
from hundredfold_bitsandbytes.names import SCALES, STATE

BLOCK = 64
NESTED_BLOCK = 256
"""What shares a scale, and a scale of scales, where the library was told nothing else."""
VALUES, NESTED_VALUES, RECORD = 16 * 4, 256 * 4, 100
"""Bytes of what stands once beside each weight; a record is a text of some length."""


def form_of(layer: LayerOutline, section: Mapping[str, Any]) -> WeightForm | None:
    """The form; ``None`` for plain floats."""
    if layer.header() is not None:
        kind = next((kind for kind in CODEBOOKS if layer.header(STATE + kind) is not None), None)
        eight = layer.header(SCALES) is not None
    else:
        excepted = section.get("llm_int8_skip_modules")
        plain = excepted if isinstance(excepted, list) and excepted else ["lm_head"]
        if layer.role is not LayerRole.LINEAR or is_listed(layer.name, map(str, plain)):
            return None
        four = section.get("load_in_4bit", section.get("_load_in_4bit")) is True
        kind = str(section.get("bnb_4bit_quant_type", "fp4")) if four else None
        eight = not four
    rows, columns = layer.shape
    if kind is not None:
        return _four_bit(layer, kind, section.get("bnb_4bit_use_double_quant") is True)
    return by_channel(rows * columns + 4 * rows) if eight else None


def _four_bit(layer: LayerOutline, kind: str, double: bool) -> WeightForm:
    numbers = layer.shape[0] * layer.shape[1]
    scales = layer.header("weight.absmax")
    blocks = max(1, -(-numbers // BLOCK) if scales is None else prod(scales.shape))
    group = 1 << (-(-numbers // blocks) - 1).bit_length()  # a power of two
    stored = (numbers + 1) // 2 + layer.nbytes("weight.absmax", blocks if double else 4 * blocks)
    stored += VALUES + layer.nbytes(STATE + kind, RECORD)
    if layer.header("weight.nested_absmax") is not None or (layer.headers is None and double):
        stored += layer.nbytes("weight.nested_absmax", -(-blocks // NESTED_BLOCK) * 4) + NESTED_VALUES
    return codebook(f"{kind} g{group}", group, stored)
