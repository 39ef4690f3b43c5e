"""The quantization contract: say which layers a format covers and read them as canonical weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hundredfold.plugin.reasons import Reasons
from hundredfold.plugin.weights import CanonicalWeight

if TYPE_CHECKING:
    import numpy
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as it lies in the checkpoint."""

    name: str
    encoding: str
    """``F32``, ``BF16``, ``I32``, … as safetensors writes them, or a GGUF type such as ``Q4_1``."""
    shape: tuple[int, ...]
    """Logical shape, outermost first; for a packed GGUF type the shape after unpacking."""
    raw: numpy.ndarray[Any, Any]
    """The bytes, uint8[number of bytes], mapped from the file and read-only."""


class TensorSource(Protocol):
    """The checkpoint's tensors; nothing is read until asked for."""

    def names(self) -> frozenset[str]:
        """Every tensor name."""

    def describe(self, name: str) -> StoredTensor:
        """One tensor's record. Raises ``KeyError`` with the name when there is none."""

    def dense(self, name: str) -> Tensor:
        """One unquantized tensor in its stored float or integer type."""


class Formats(Protocol):
    """Every format that may be used, for one that hands layers on to others."""

    def bind(self, part: CheckpointInfo) -> QuantizationMethod:
        """The method of the format whose own ``part`` is. Raises ``ValueError`` with everybody's reasons."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a format may look at before it says that a checkpoint is its own."""

    container: str
    """``safetensors`` or ``gguf``."""
    quantization_config: Mapping[str, Any] | None
    """The checkpoint's own section, wherever it stood; ``None`` when there is none."""
    formats: Formats | None = field(default=None, compare=False, repr=False)
    """The other formats; ``None`` where nobody can be asked, as for a part that was handed on already."""


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """One linear layer to be read."""

    name: str
    """The layer's name in the checkpoint, without ``.weight``."""
    shape: tuple[int, int]
    """Output and input features that the model's description expects."""


class QuantizationMethod(Protocol):
    """A format bound to one checkpoint.

    One that does not do to the letter what a checkpoint says, or has more to tell of it, has an attribute
    ``remarks``, a tuple of short texts. It is read when every layer is loaded, and shown to users.
    """

    def covers(self, layer: LayerRequest) -> bool:
        """Whether this method reads the layer; otherwise it is read as a dense tensor."""

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """Read the layer. Raises ``ValueError`` naming layer, tensor and reason when it cannot."""


class QuantizationPlugin(Protocol):
    """Group ``hundredfold.quantization``."""

    name: str
    api_version: int

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Why the checkpoint is not of this format, or not of a kind that can be read; empty when it can."""

    def bind(self, checkpoint: CheckpointInfo) -> QuantizationMethod:
        """The method for this checkpoint. Raises ``ValueError`` naming the key at fault."""
