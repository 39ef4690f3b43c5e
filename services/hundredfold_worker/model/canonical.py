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
    GroupedIntWeight,
)


def join_rows(weights: Sequence[CanonicalWeight]) -> CanonicalWeight | None:
    """One weight with the rows of all, so that one product computes all; ``None`` where formats differ."""
    first = weights[0]
    if isinstance(first, Codebook4Weight):
        return _join_codebook(first, weights)
    if not isinstance(first, (DenseWeight, GroupedIntWeight, ChannelInt8Weight)):
        return None
    if any(not isinstance(weight.transform, BlockHadamard | None) for weight in weights):
        return None  # their tensors may differ
    if any(_format(weight) != _format(first) for weight in weights):
        return None
    joined: dict[str, Any] = {
        field.name: torch.cat([getattr(weight, field.name) for weight in weights])
        for field in fields(first)
        if isinstance(getattr(first, field.name), Tensor)
    }
    return replace(first, **joined)


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
        value = getattr(weight, field.name)
        parts.append((value.dtype, value.shape[1:]) if isinstance(value, Tensor) else value)
    return tuple(parts)
