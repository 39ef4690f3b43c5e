"""Canonical weights as values: joined by rows, moved to a device. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from hundredfold.plugin import (
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    InputTransform,
    Permute,
)


def join_rows(weights: Sequence[CanonicalWeight]) -> CanonicalWeight | None:
    """One weight with the rows of all, so that one product computes all; ``None`` where formats differ."""
    first = weights[0]
    if isinstance(first, Codebook4Weight):
        return _join_codebook(first, weights)
    if not isinstance(first, (DenseWeight, GroupedIntWeight, ChannelInt8Weight, Float8Weight)):
        return None
    if isinstance(first, Float8Weight) and not all(map(_ends_with_a_block, weights)):
        return None
    if not all(_same_transform(weight.transform, first.transform) for weight in weights):
        return None
    if any(_format(weight) != _format(first) for weight in weights):
        return None
    joined: dict[str, Any] = {
        field.name: torch.cat([getattr(weight, field.name) for weight in weights])
        for field in fields(first)
        if isinstance(getattr(first, field.name), Tensor)
    }
    return replace(first, **joined)


def _same_transform(one: InputTransform | None, other: InputTransform | None) -> bool:
    """Whether one input serves both. Layers that were quantized by one input's statistics have one order."""
    if isinstance(one, Permute) and isinstance(other, Permute):
        return torch.equal(one.index, other.index)
    return isinstance(one, BlockHadamard | None) and one == other


def _ends_with_a_block(weight: CanonicalWeight) -> bool:
    """Whether the next row would begin with a scale of its own."""
    if not isinstance(weight, Float8Weight) or weight.scales.ndim < 2:
        return False
    return weight.block is None or len(weight.codes) % weight.block[0] == 0


def _join_codebook(first: Codebook4Weight, weights: Sequence[CanonicalWeight]) -> CanonicalWeight | None:
    """The same where all share a codebook; groups run over the flattened matrix and have to end with it."""
    parts = [weight for weight in weights if isinstance(weight, Codebook4Weight)]
    alike = len(parts) == len(weights) and all(
        _format(part) == _format(first)
        and part.transform is None
        and part.codes.numel() % part.group_size == 0
        and torch.equal(part.codebook, first.codebook)
        for part in parts
    )
    if not alike:
        return None
    codes, scales = (torch.cat([getattr(part, name) for part in parts]) for name in ("codes", "scales"))
    return replace(first, codes=codes, scales=scales)


def to_device(weight: CanonicalWeight, device: torch.device) -> CanonicalWeight:
    """The weight with its tensors on ``device``; the input transform moves along."""
    moved: dict[str, Any] = {}
    for field in fields(weight):
        value = getattr(weight, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.to(device)
    if weight.transform is not None:
        parts = {f.name: getattr(weight.transform, f.name) for f in fields(weight.transform)}
        tensors: dict[str, Any] = {k: v.to(device) for k, v in parts.items() if isinstance(v, Tensor)}
        moved["transform"] = replace(weight.transform, **tensors)
    return replace(weight, **moved)


def _format(weight: CanonicalWeight) -> tuple[object, ...]:
    """What has to be equal for rows to be joined: class, plain fields, each tensor's type and columns."""
    parts: list[object] = [type(weight)]
    for field in fields(weight):
        if field.name == "transform":
            continue
        value = getattr(weight, field.name)
        parts.append((value.dtype, value.shape[1:]) if isinstance(value, Tensor) else value)
    return tuple(parts)
