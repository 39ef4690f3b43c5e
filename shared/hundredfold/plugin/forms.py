"""What a layer is in the checkpoint and becomes at load, stated before a number is read: for ``estimate``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hundredfold.plugin.quantization import LayerRequest
from hundredfold.plugin.weights import (
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    Float8Weight,
    GroupedIntWeight,
    Zero,
)

HALF = "F16"


@enum.unique
class LayerRole(enum.Enum):
    """What a matrix is for."""

    TABLE = "embedding"
    LINEAR = "linear"
    ROUTER = "router"
    """Chooses experts."""
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of the checkpoint as its file's header tells it."""

    encoding: str
    """As ``StoredTensor`` has it."""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayerOutline:
    """A layer of which no number was read."""

    name: str
    shape: tuple[int, int]
    role: LayerRole = LayerRole.LINEAR
    headers: Mapping[str, TensorHeader] | None = None
    """Every tensor of the checkpoint by name; ``None`` where only its configuration is here."""
    floats: str = HALF
    """What its plain floats are, which scales of some formats are too."""

    @property
    def request(self) -> LayerRequest:
        """The layer as ``load`` is asked for it."""
        return LayerRequest(self.name, self.shape)

    def header(self, part: str = "weight") -> TensorHeader | None:
        """The header of ``<layer>.<part>``; ``None`` where it is not known, or there is none."""
        return None if self.headers is None else self.headers.get(f"{self.name}.{part}")

    def nbytes(self, part: str, usual: int) -> int:
        """Bytes of ``<layer>.<part>``, 0 where it is not there; ``usual`` where no headers are."""
        header = self.header(part)
        return usual if self.headers is None else 0 if header is None else header.nbytes

    def is_quantized(self, part: str, configured: bool) -> bool:
        """Whether ``<layer>.<part>`` is there; ``configured`` where neither it nor a ``weight`` is known."""
        return self.header(part) is not None or (self.header() is None and configured)

    def is_half(self, part: str, usual: bool = True) -> bool:
        """Whether ``<layer>.<part>`` holds float16; ``usual`` where its header is not known."""
        header = self.header(part)
        return usual if header is None else header.encoding == HALF


@dataclass(frozen=True, slots=True)
class WeightForm:
    """What ``load`` or ``quantize`` will return, and what it is made of."""

    label: str
    """For people, short: ``gptq 4-bit g128``."""
    makes: type[CanonicalWeight]
    stored_bytes: int = 0
    """Of all the layer's tensors in the checkpoint; 0 for what is made at load."""
    bits: int = 8
    """Of a code, as the canonical weight says."""
    group_size: int | None = None
    """The same, for forms that have groups; ``None`` for others."""
    half_scales: bool = False
    """Whether scales are float16, and offsets too."""
    zero: Zero | None = None
    """How zeros that differ from group to group are meant; ``None`` where all share one."""


@runtime_checkable
class StatingForms(Protocol):
    """A ``QuantizationMethod`` or ``Quantizer`` that says beforehand what it makes of a layer."""

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """The form; ``None`` for plain floats, or for what a quantizer leaves as it is.

        Only names, shapes and the configuration are at hand. Raises ``ValueError`` naming the layer when they
        do not tell.
        """


def grouped(
    label: str,
    layer: LayerOutline,
    bits: int,
    group_size: int | None,
    stored_bytes: int,
    *,
    half_scales: bool = True,
    zero: Zero | None = None,
) -> WeightForm:
    """Integers with a scale for ``group_size`` columns, or for whole rows."""
    group = min(group_size or layer.shape[1], layer.shape[1])
    said = f"{label} {bits}-bit {f'g{group_size}' if group_size else 'row'}"
    return WeightForm(said, GroupedIntWeight, stored_bytes, bits, group, half_scales, zero)


def by_channel(stored_bytes: int = 0) -> WeightForm:
    """int8 with a scale per row."""
    return WeightForm("int8 by channel", ChannelInt8Weight, stored_bytes)


def float8(label: str, stored_bytes: int = 0) -> WeightForm:
    """8-bit floats."""
    return WeightForm(f"fp8 {label}".strip(), Float8Weight, stored_bytes)


def codebook(label: str, group_size: int, stored_bytes: int = 0) -> WeightForm:
    """4-bit indices into sixteen values."""
    return WeightForm(label, Codebook4Weight, stored_bytes, 4, group_size)


def words(count: int, bits: int) -> int:
    """Bytes of the 32-bit words that hold ``count`` numbers without a gap."""
    return -(-count * bits // 32) * 4


def is_listed(name: str, modules: Iterable[str]) -> bool:
    """Whether a listed module is the layer, holds it, or is called like a run of parts of its name."""
    return any(f".{module.strip('.')}." in f".{name}." for module in modules)
