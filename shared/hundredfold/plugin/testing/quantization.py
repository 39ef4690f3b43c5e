"""Quantization plugins: what they read equals what the author says it is, and damage is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hundredfold.plugin import (
    CanonicalWeight,
    ChannelInt8Weight,
    CheckpointInfo,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    LayerRequest,
    QuantizationMethod,
    QuantizationPlugin,
    StoredTensor,
    TensorSource,
)
from hundredfold.plugin.testing.forms import check_stated
from hundredfold.plugin.testing.reference import reference_linear
from hundredfold.plugin.testing.report import (
    NonConformance,
    Report,
    check_plugin,
    checked_reasons,
    require,
)

_FOREIGN = (
    CheckpointInfo("safetensors", {"quant_method": "a-format-that-nobody-has"}),
    CheckpointInfo("a-container-that-nobody-has", None),
)

_DENSE = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class MemoryTensors(TensorSource):
    """A checkpoint in memory."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = dict(tensors)

    def names(self) -> frozenset[str]:
        """See ``TensorSource``."""
        return frozenset(self._tensors)

    def describe(self, name: str) -> StoredTensor:
        """See ``TensorSource``."""
        return self._tensors[name]

    def dense(self, name: str) -> Tensor:
        """See ``TensorSource``."""
        stored = self._tensors[name]
        if stored.encoding not in _DENSE:
            raise ValueError(f"tensor '{name}' is {stored.encoding}, which is not dense")
        kind = _DENSE[stored.encoding]
        wanted = torch.Size(stored.shape).numel() * kind.itemsize
        if stored.raw.nbytes != wanted:
            raise ValueError(f"tensor '{name}' has {stored.raw.nbytes} bytes, its shape needs {wanted}")
        return torch.frombuffer(bytearray(stored.raw.tobytes()), dtype=kind).reshape(stored.shape)


def check_quantization(
    plugin: QuantizationPlugin,
    checkpoint: CheckpointInfo,
    tensors: Mapping[str, StoredTensor],
    layers: Mapping[LayerRequest, Tensor],
    *,
    tolerance: float = 1e-6,
) -> Report:
    """Read ``layers`` of a checkpoint and compare each with the matrix that its author expects.

    An expected matrix is float [N, K] such that the layer computes ``x @ matrix.T``, input transform
    included. Also checked: foreign checkpoints are refused, a missing or cut tensor or a wrong shape
    ends in a ``ValueError`` that names the layer, and a method that states forms reads what it states.
    Raises ``NonConformance``.
    """
    check_plugin("hundredfold.quantization", plugin)
    report = Report()
    for foreign in _FOREIGN:
        reasons = checked_reasons(plugin, str(foreign), plugin.refuses(foreign))
        require(bool(reasons), f"{plugin.name} accepts {foreign}")
        report.refused[str(foreign)] = reasons
    reasons = checked_reasons(plugin, "own checkpoint", plugin.refuses(checkpoint))
    require(not reasons, f"{plugin.name} refuses its own checkpoint: {reasons}")
    method = plugin.bind(checkpoint)
    for layer, matrix in layers.items():
        case = f"{plugin.name}, layer '{layer.name}'"
        require(method.covers(layer) is True, f"{case} is not covered")
        source = _Recording(tensors)
        weight = method.load(layer, source)
        check_weight(weight, layer.shape, case)
        identity = torch.eye(layer.shape[1], dtype=torch.float64)
        difference = float((reference_linear(weight, identity).T - matrix.double()).abs().max())
        require(difference <= tolerance, f"{case}: differs by {difference:.3g}, over {tolerance:g}")
        check_stated(method, layer, weight, case, tensors, source.used)
        _check_damage(method, layer, tensors, source.used, case)
        report.accepted.append(layer.name)
    return report


def check_weight(weight: CanonicalWeight, shape: tuple[int, int], case: str = "weight") -> None:
    """Check a canonical weight's shapes, types and ranges. Raises ``NonConformance``."""
    matrix = weight.weight if isinstance(weight, DenseWeight) else weight.codes
    rows, columns = shape
    require(tuple(matrix.shape) == shape, f"{case}: shape is {tuple(matrix.shape)}, wanted is {shape}")
    if isinstance(weight, DenseWeight):
        require(weight.weight.is_floating_point(), f"{case}: a dense weight of {weight.weight.dtype}")
    elif isinstance(weight, GroupedIntWeight):
        _check_grouped(weight, case)
    elif isinstance(weight, ChannelInt8Weight):
        require(weight.codes.dtype == torch.int8, f"{case}: codes are {weight.codes.dtype}, wanted is int8")
        _check_scales(weight.scales, (rows,), torch.float32, case)
    elif isinstance(weight, Float8Weight):
        wanted: tuple[tuple[int, ...], ...] = ((), (rows, 1))
        if weight.block is not None:
            wanted = ((-(-rows // weight.block[0]), -(-columns // weight.block[1])),)
        actual = tuple(weight.scales.shape)
        require(actual in wanted, f"{case}: scales are {actual}, wanted is one of {wanted}")
        require(weight.codes.dtype.itemsize == 1, f"{case}: codes are {weight.codes.dtype}")
    elif isinstance(weight, Codebook4Weight):
        _check_scales(weight.codebook, (16,), torch.float32, case)
        _check_scales(weight.scales, (-(-rows * columns // weight.group_size),), torch.float32, case)
        require(weight.codes.dtype == torch.uint8, f"{case}: codes are {weight.codes.dtype}, wanted is uint8")
        require(int(weight.codes.max()) < 16, f"{case}: codes reach {int(weight.codes.max())}, limit is 15")
    else:
        raise NonConformance(f"{case}: {type(weight).__name__} is no canonical weight")


def _check_grouped(weight: GroupedIntWeight, case: str) -> None:
    rows, columns = weight.codes.shape
    require(2 <= weight.bits <= 8, f"{case}: {weight.bits} bits, wanted are 2 to 8")
    require(weight.group_size >= 16, f"{case}: groups of {weight.group_size}, the least is 16")
    require(
        weight.codes.dtype in (torch.uint8, torch.int8),
        f"{case}: codes are {weight.codes.dtype}, wanted is uint8 or int8",
    )
    signed = weight.codes.dtype == torch.int8
    low, high = (-(2 ** (weight.bits - 1)), 2 ** (weight.bits - 1) - 1) if signed else (0, 2**weight.bits - 1)
    least, most = int(weight.codes.min()), int(weight.codes.max())
    require(low <= least and most <= high, f"{case}: codes {least} to {most} leave {low} to {high}")
    groups = (rows, -(-columns // weight.group_size))
    _check_scales(weight.scales, groups, None, case)
    if weight.zeros is not None:
        actual = tuple(weight.zeros.shape)
        require(actual == groups, f"{case}: zeros are {actual}, wanted is {groups}")


def _check_scales(scales: Tensor, shape: tuple[int, ...], kind: torch.dtype | None, case: str) -> None:
    require(tuple(scales.shape) == shape, f"{case}: scales are {tuple(scales.shape)}, wanted is {shape}")
    right = scales.dtype == kind if kind is not None else scales.is_floating_point()
    require(right, f"{case}: scales are {scales.dtype}, wanted is {kind or 'a float'}")
    require(bool(torch.isfinite(scales.double()).all()), f"{case}: scales are not finite")


class _Recording(MemoryTensors):
    """Remembers which tensors were asked for."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        super().__init__(tensors)
        self.used: set[str] = set()

    def describe(self, name: str) -> StoredTensor:
        self.used.add(name)
        return super().describe(name)

    def dense(self, name: str) -> Tensor:
        self.used.add(name)
        return super().dense(name)


def _check_damage(
    method: QuantizationMethod,
    layer: LayerRequest,
    tensors: Mapping[str, StoredTensor],
    used: set[str],
    case: str,
) -> None:
    for name in sorted(used & set(tensors)):
        without = {other: tensor for other, tensor in tensors.items() if other != name}
        _must_refuse(method, layer, without, f"{case} without {name}")
        stored = tensors[name]
        cut = {**tensors, name: replace(stored, raw=stored.raw[: stored.raw.size // 2])}
        _must_refuse(method, layer, cut, f"{case} with half of {name}")
    taller = replace(layer, shape=(layer.shape[0] + 1, layer.shape[1]))
    _must_refuse(method, taller, tensors, f"{case} as {taller.shape}")


def _must_refuse(
    method: QuantizationMethod, layer: LayerRequest, tensors: Mapping[str, StoredTensor], case: str
) -> None:
    try:
        method.load(layer, MemoryTensors(tensors))
    except ValueError as error:
        require(layer.name in str(error), f"{case}: the message does not name the layer: {error}")
    except Exception as error:
        raise NonConformance(f"{case}: {type(error).__name__} ({error}), wanted is ValueError") from error
    else:
        raise NonConformance(f"{case} was read without complaint")
