"""The ``quantization_config`` of these checkpoints, checked: schemes, and which layers have them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hundredfold_compressed_tensors.targets import Targets, text_list

QUANT_METHOD = "compressed-tensors"
MAX_GROUPS = 1024
MAX_SIZE = 1 << 20
"""Columns of a group, rows of a block."""
LEAST_GROUP = 16
"""Columns of a group that kernels take; with fewer the matrix is dequantized."""


@enum.unique
class Format(enum.StrEnum):
    """How a layer's tensors lie in the file."""

    DENSE = "dense"
    INT = "int-quantized"
    FLOAT = "float-quantized"
    NAIVE = "naive-quantized"
    PACK = "pack-quantized"
    NVFP4 = "nvfp4-pack-quantized"
    MXFP4 = "mxfp4-pack-quantized"
    MXFP8 = "mxfp8-quantized"


@enum.unique
class Strategy(enum.StrEnum):
    """What shares a scale of the weights."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    GROUP = "group"
    TENSOR_GROUP = "tensor_group"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class WeightArgs:
    """How one scheme quantizes weights."""

    bits: int
    floating: bool
    symmetric: bool
    strategy: Strategy
    group_size: int | None
    """Columns; for groups only."""
    block: tuple[int, int] | None
    """Rows and columns; for blocks only."""
    ordered: bool
    """Columns belong to groups as ``weight_g_idx`` says."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """One of ``config_groups``."""

    key: str
    format: Format
    weights: WeightArgs | None
    """``None`` where weights are plain floats."""
    inputs: str
    """What the checkpoint quantizes the layers' inputs to, for messages; empty for nothing."""
    outputs: bool
    """Whether outputs are quantized as well."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a checkpoint says of itself."""

    schemes: tuple[Scheme, ...]
    targets: tuple[Targets, ...]
    """For each scheme, whom it is for."""
    ignore: Targets
    kv_cache: str
    """What the checkpoint quantizes keys and values to; empty for nothing."""

    def scheme_of(self, name: str) -> Scheme | None:
        """The scheme of a layer, ``None`` where it is left as it is.

        A target that is the name itself goes before patterns, those before classes; among patterns
        the first in alphabetical order, and among equals the last scheme, as the format's library has it.
        """
        if self.ignore.rank(name) is not None:
            return None
        ranked = [
            (rank, -index) for index, own in enumerate(self.targets) if (rank := own.rank(name)) is not None
        ]
        return self.schemes[-min(ranked)[1]] if ranked else None


def read_config(values: Mapping[str, Any]) -> Config:
    """Check a ``quantization_config``. Raises ``ValueError`` naming the key at fault and why."""
    _refuse_unread(values)
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) > MAX_GROUPS:
        raise ValueError(f"config_groups is no object of at most {MAX_GROUPS} schemes")
    schemes, targets = [], []
    for name, group in groups.items():
        key = f"config_groups.{str(name)[:80]}"
        if not isinstance(group, Mapping):
            raise ValueError(f"{key} is no object")
        schemes.append(_scheme(key, group, values.get("format")))
        targets.append(Targets(f"{key}.targets", text_list(group.get("targets"), f"{key}.targets")))
    ignore = Targets("ignore", text_list(values.get("ignore") or [], "ignore"))
    cache = _activations(values.get("kv_cache_scheme"), "kv_cache_scheme")
    if not schemes and not cache:
        raise ValueError("config_groups is empty: nothing says how layers are quantized")
    return Config(tuple(schemes), tuple(targets), ignore, cache)


def _refuse_unread(values: Mapping[str, Any]) -> None:
    """Parts of the format that change what layers compute and are not implemented."""
    sparsity = values.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, Mapping) and sparsity.get("format") in (None, "dense")):
        kind = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
        raise ValueError(f"sparsity_config: sparse weights ({str(kind)[:80]!r}) are not read")
    transform = values.get("transform_config")
    if transform and not (isinstance(transform, Mapping) and not transform.get("config_groups")):
        raise ValueError("transform_config: layers whose inputs are rotated or transformed are not read")


def _scheme(key: str, group: Mapping[str, Any], common_format: object) -> Scheme:
    weights = group.get("weights")
    args = None if weights is None else _weight_args(weights, f"{key}.weights")
    return Scheme(
        key=key,
        format=Format.DENSE if args is None else _format(key, group.get("format"), common_format, args),
        weights=args,
        inputs=_activations(group.get("input_activations"), f"{key}.input_activations"),
        outputs=group.get("output_activations") is not None,
    )


def _format(key: str, own: object, common: object, args: WeightArgs) -> Format:
    """A scheme's own word goes before the common one. Raises ``ValueError`` when it cannot hold them."""
    where, stated = (f"{key}.format", own) if own is not None else ("format", common)
    if stated not in list(Format):
        known = ", ".join(Format)
        raise ValueError(f"{where} is {str(stated)[:80]!r}, which is not read; read are {known}")
    found = Format(str(stated))
    four_bit_floats = args.floating and args.bits == 4
    fits = {
        Format.DENSE: True,
        Format.INT: not args.floating,
        Format.PACK: not args.floating,
        Format.FLOAT: args.floating and args.bits == 8,
        Format.NAIVE: not args.floating or args.bits == 8,
        Format.NVFP4: four_bit_floats and args.strategy is Strategy.TENSOR_GROUP,
        Format.MXFP4: four_bit_floats and args.strategy is Strategy.GROUP,
        Format.MXFP8: args.floating and args.bits == 8 and args.strategy is Strategy.GROUP,
    }
    if not fits[found]:
        kind = "float" if args.floating else "int"
        raise ValueError(f"{where} is '{found}', which holds no {args.bits}-bit {kind} by {args.strategy}")
    return found


def _weight_args(values: object, key: str) -> WeightArgs:
    if not isinstance(values, Mapping):
        raise ValueError(f"{key} is no object")
    floating = _choice(values, key, "type", ("int", "float"), "int") == "float"
    bits = _whole(values.get("num_bits", 8), f"{key}.num_bits", 8)
    if bits < 2 or (floating and bits not in (4, 8)):
        raise ValueError(f"{key}.num_bits is {bits}; read are 2 to 8 for int, 4 and 8 for float")
    symmetric = values.get("symmetric", True)
    if not isinstance(symmetric, bool):
        raise ValueError(f"{key}.symmetric is {str(symmetric)[:80]!r}, expected is true or false")
    if floating and not symmetric:
        raise ValueError(f"{key}.symmetric is false; float weights with zero points are not read")
    if values.get("dynamic"):
        raise ValueError(
            f"{key}.dynamic is {str(values['dynamic'])[:80]!r}; weights have to be quantized already"
        )
    strategy = Strategy(_choice(values, key, "strategy", tuple(Strategy), _implied_strategy(values)))
    grouped = strategy in (Strategy.GROUP, Strategy.TENSOR_GROUP)
    if strategy is Strategy.BLOCK and not floating:
        raise ValueError(f"{key}.strategy is 'block'; blocks of integers are not read")
    return WeightArgs(
        bits=bits,
        floating=floating,
        symmetric=symmetric,
        strategy=strategy,
        group_size=_whole(values.get("group_size"), f"{key}.group_size", MAX_SIZE) if grouped else None,
        block=_block(values.get("block_structure"), key) if strategy is Strategy.BLOCK else None,
        ordered=values.get("actorder") in (True, "group", "dynamic"),
    )


def _implied_strategy(values: Mapping[str, Any]) -> str:
    """What the format's library takes where no strategy stands."""
    group_size = values.get("group_size")
    if group_size is None:
        return Strategy.TENSOR
    return Strategy.CHANNEL if group_size == -1 else Strategy.GROUP


def _block(value: object, key: str) -> tuple[int, int]:
    sizes: Sequence[object] = []
    if isinstance(value, str):
        sizes = [int(part) if part.isdecimal() and len(part) < 8 else None for part in value.split("x")]
    elif isinstance(value, Sequence):
        sizes = value
    if len(sizes) != 2:
        raise ValueError(f"{key}.block_structure is {str(value)[:80]!r}, expected are rows and columns")
    rows, columns = (_whole(size, f"{key}.block_structure", MAX_SIZE) for size in sizes)
    return rows, columns


def _activations(values: object, key: str) -> str:
    """In words, such as ``8-bit int, static by tensor``; empty where there is nothing."""
    if values is None:
        return ""
    if not isinstance(values, Mapping):
        raise ValueError(f"{key} is no object")
    kind = _choice(values, key, "type", ("int", "float"), "int")
    bits = _whole(values.get("num_bits", 8), f"{key}.num_bits", 16)
    by = str(values.get("strategy") or "tensor").replace("_", " ")[:40]
    when = "dynamic" if values.get("dynamic") else "static"
    uneven = ", asymmetric" if values.get("symmetric") is False else ""
    return f"{bits}-bit {kind}, {when} by {by}{uneven}"


def _choice(values: Mapping[str, Any], key: str, name: str, known: Sequence[str], default: str) -> str:
    value = values.get(name)
    found = default if value is None else str(value).lower()
    if found not in known:
        raise ValueError(f"{key}.{name} is {str(value)[:80]!r}; read are {', '.join(known)}")
    return found


def _whole(value: object, key: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{key} is {str(value)[:80]!r}, expected is a whole number from 1 to {most}")
    return value
