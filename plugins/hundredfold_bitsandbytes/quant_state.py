"""The JSON record that bitsandbytes stores beside a 4-bit weight, parsed and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 4096
"""Real records have 80 to 200."""

BLOCK_SIZES = tuple(1 << power for power in range(4, 17))
"""Numbers that share a scale: powers of two, 16 to 65536. The library makes 32 to 4096."""

DTYPES = ("float16", "bfloat16", "float32")

_NESTED = ("nested_blocksize", "nested_offset", "nested_dtype")
_KEYS = {"quant_type", "blocksize", "dtype", "shape", *_NESTED}


@dataclass(frozen=True, slots=True)
class Nested:
    """How scales are stored that were quantized themselves."""

    block_size: int
    offset: float


@dataclass(frozen=True, slots=True)
class QuantState:
    """What the record says of a weight."""

    block_size: int
    shape: tuple[int, ...]
    dtype: str
    """The type that the matrix had, in which the library computes."""
    nested: Nested | None


def parse_quant_state(raw: bytes, kind: str) -> QuantState:
    """Parse a record stored under the name of ``kind``, ``nf4`` or ``fp4``.

    Raises ``ValueError`` naming the key at fault.
    """
    if len(raw) > MAX_BYTES:
        raise ValueError(f"has {len(raw)} bytes, the limit is {MAX_BYTES}")
    try:
        record = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"holds no valid JSON: {str(error)[:200]}") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds a JSON {type(record).__name__}, not an object")
    strange = sorted(record.keys() - _KEYS)
    if strange:
        raise ValueError(f"has the unknown key {strange[0][:80]!r}")
    if record.get("quant_type") != kind:
        raise ValueError(f"says quant_type {_show(record, 'quant_type')}, its name says {kind!r}")
    shape = record.get("shape")
    if not isinstance(shape, list) or len(shape) > 4 or not all(_is_whole(size) for size in shape):
        raise ValueError(f"has shape {_show(record, 'shape')}, not a list of sizes")
    if record.get("dtype") not in DTYPES:
        raise ValueError(f"has dtype {_show(record, 'dtype')}, expected is {' or '.join(DTYPES)}")
    return QuantState(_block_size(record, "blocksize"), tuple(shape), record["dtype"], _nested(record))


def _nested(record: Mapping[str, Any]) -> Nested | None:
    present = [key for key in _NESTED if key in record]
    if not present:
        return None
    if len(present) < len(_NESTED):
        missing = next(key for key in _NESTED if key not in record)
        raise ValueError(f"has {present[0]} but no {missing}")
    if record["nested_dtype"] != "float32":
        raise ValueError(f"has nested_dtype {_show(record, 'nested_dtype')}, expected is 'float32'")
    offset = record["nested_offset"]
    if not isinstance(offset, float | int) or isinstance(offset, bool) or not _is_finite(offset):
        raise ValueError(f"has nested_offset {_show(record, 'nested_offset')}, expected is a finite number")
    return Nested(_block_size(record, "nested_blocksize"), float(offset))


def _block_size(record: Mapping[str, Any], key: str) -> int:
    size = record.get(key)
    if not _is_whole(size) or size not in BLOCK_SIZES:
        between = f"{BLOCK_SIZES[0]} to {BLOCK_SIZES[-1]}"
        raise ValueError(f"has {key} {_show(record, key)}, expected is a power of two from {between}")
    return int(size)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _show(record: Mapping[str, Any], key: str) -> str:
    return repr(record.get(key))[:80]
