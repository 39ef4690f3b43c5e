"""The KV cache contract: in which encoding keys and values are kept, and where scales come from."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hundredfold.plugin.reasons import Reasons

if TYPE_CHECKING:
    import torch


@enum.unique
class Encoding(enum.Enum):
    """The closed set of encodings a cache may have."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    """e4m3."""
    FP8_E5M2 = "fp8_e5m2"
    INT4 = "int4"


@enum.unique
class ScalePolicy(enum.Enum):
    """Where the scales of an encoding come from."""

    NONE = "none"
    PER_TOKEN_HEAD = "per_token_head"
    PER_TOKEN_GROUP = "per_token_group"
    """Of 32 columns of a token's head."""
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """What the worker is about to keep."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    device: torch.device
    dtype: torch.dtype
    """Type of keys and values as the model computes them."""


class KVCachePlugin(Protocol):
    """Group ``hundredfold.kv_cache``."""

    name: str
    api_version: int
    encoding: Encoding
    scales: ScalePolicy

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Why this encoding cannot hold such a cache; empty when it can."""
