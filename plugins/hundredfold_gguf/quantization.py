"""GGUF's tensor types as canonical weights: integers and codebooks stay packed, the rest is dequantized.

Block layouts: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from collections import Counter

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    Codebook4Weight,
    DenseWeight,
    GroupedIntWeight,
    LayerOutline,
    LayerRequest,
    Reasons,
    TensorSource,
    WeightForm,
)
from hundredfold.plugin.reading import FLOATS, find_tensor, read_tensor
from hundredfold_gguf.forms import KEPT, form_of


class Gguf:
    """GGUF files: Q4, Q5, Q8_0 and K-quants stay integers, IQ4 and MXFP4 codebooks; others become floats."""

    name = "gguf"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes every GGUF file: each tensor carries its type."""
        if checkpoint.container != "gguf":
            return [f"reads gguf files, not {checkpoint.container}"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> GgufMethod:
        """The method; it needs nothing from the checkpoint."""
        return GgufMethod()


class GgufMethod:
    """Reads ``<layer>.weight`` by its type."""

    def __init__(self) -> None:
        self._read: Counter[str] = Counter()

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer's matrix. Raises ``ValueError`` when it is absent, misshapen, cut or of unknown type."""
        stored = find_tensor(layer, tensors)
        self._read[stored.encoding] += 1
        if stored.encoding not in KEPT:
            return DenseWeight(read_tensor(layer, tensors))
        from hundredfold_gguf.readers import READERS  # they need torch, which estimates do without

        weight = READERS[stored.encoding](layer, stored)
        if not _is_finite(weight):
            raise ValueError(
                f"layer '{layer.name}': tensor '{stored.name}' has scales or minima that are not finite"
            )
        return weight

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``. Raises ``ValueError`` without the file's header, which alone says types."""
        header = layer.header()
        if header is None:
            raise ValueError(f"layer '{layer.name}': tensor '{layer.name}.weight' is missing")
        return None if header.encoding in FLOATS else form_of(header)

    @property
    def remarks(self) -> tuple[str, ...]:
        """How many matrices of each type were kept as stored, and how many were not."""
        kept = [f"{count} {kind}" for kind, count in self._read.most_common() if kind in KEPT]
        others = self._read.keys() - KEPT.keys() - set(FLOATS)
        dense = [f"{self._read[kind]} {kind}" for kind in sorted(others)]
        said = (("read as stored", kept), ("dequantized at load", dense))
        return tuple(f"{what}: {', '.join(kinds)}" for what, kinds in said if kinds)


def _is_finite(weight: GroupedIntWeight | Codebook4Weight) -> bool:
    zeros = weight.zeros if isinstance(weight, GroupedIntWeight) else None
    return all(bool(part.isfinite().all()) for part in (weight.scales, zeros) if part is not None)
