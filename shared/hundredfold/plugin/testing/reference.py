"""The suite's own arithmetic: small, slow, obvious, in float64; every plugin is compared with it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hundredfold.plugin import (
    AttentionSpec,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    InputTransform,
    Permute,
    Scale,
    Zero,
)


def dequantize(weight: CanonicalWeight) -> Tensor:
    """The matrix that a weight stands for, float64[N, K], before its input transform."""
    if isinstance(weight, DenseWeight):
        return weight.weight.double()
    if isinstance(weight, ChannelInt8Weight):
        return weight.codes.double() * weight.scales.double()[:, None]
    if isinstance(weight, GroupedIntWeight):
        return _grouped(weight)
    if isinstance(weight, Float8Weight):
        return weight.codes.double() * _float8_scales(weight)
    return _codebook(weight)


def transform_input(x: Tensor, transform: InputTransform | None) -> Tensor:
    """The input [M, K] as the multiplication sees it."""
    if transform is None:
        return x
    if isinstance(transform, Permute):
        return x[:, transform.index]
    if isinstance(transform, Scale):
        return x * transform.factor.to(x.dtype)
    size = transform.block
    rotation = hadamard(size).to(x)
    return (x.reshape(len(x), -1, size) @ rotation).reshape(x.shape)


def hadamard(size: int) -> Tensor:
    """The normalised Hadamard matrix, Sylvester's order, float64[size, size]; ``size`` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / math.sqrt(size)


def reference_linear(weight: CanonicalWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """``transform(x) @ W.T + bias`` in float64: [M, K] to [M, N]."""
    y = transform_input(x.double(), weight.transform) @ dequantize(weight).T
    return y if bias is None else y + bias.double()


def reference_attention(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence in float64: ``q`` [n, heads, dim] belong to the last ``n`` tokens of ``k`` and
    ``v`` [total, kv heads, dim]. Returns [n, heads * dim].
    """
    queries, total = len(q), len(k)
    repeat = spec.num_heads // spec.num_kv_heads
    keys = k.double().repeat_interleave(repeat, dim=1)
    values = v.double().repeat_interleave(repeat, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    query_at = torch.arange(total - queries, total, device=q.device)[:, None]
    key_at = torch.arange(total, device=q.device)[None, :]
    visible = key_at <= query_at
    if spec.sliding_window is not None:
        visible &= key_at > query_at - spec.sliding_window
    scores = scores.masked_fill(~visible, -math.inf)
    if spec.sinks is not None:
        sink = spec.sinks.double()[:, None, None].expand(-1, queries, 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(queries, -1)


def _grouped(weight: GroupedIntWeight) -> Tensor:
    columns = weight.codes.shape[1]
    group = torch.arange(columns, device=weight.codes.device) // weight.group_size
    scales = weight.scales.double()[:, group]
    codes = weight.codes.double()
    if weight.zeros is None:
        return scales * codes
    zeros = weight.zeros.double()[:, group]
    return scales * (codes - zeros) if weight.zero is Zero.POINT else scales * codes + zeros


def _float8_scales(weight: Float8Weight) -> Tensor:
    scales = weight.scales.double()
    if weight.block is None:
        return scales
    rows, columns = weight.codes.shape
    row = torch.arange(rows, device=scales.device) // weight.block[0]
    column = torch.arange(columns, device=scales.device) // weight.block[1]
    return scales[row][:, column]


def _codebook(weight: Codebook4Weight) -> Tensor:
    values = weight.codebook.double()[weight.codes.long()].flatten()
    group = torch.arange(values.numel(), device=values.device) // weight.group_size
    return (values * weight.scales.double()[group]).reshape(weight.codes.shape)
