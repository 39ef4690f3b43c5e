"""Checkpoints that are not quantized."""

from __future__ import annotations

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    LayerOutline,
    LayerRequest,
    Reasons,
    TensorSource,
    WeightForm,
)
from hundredfold.plugin.reading import FLOATS, read_tensor


class Unquantized:
    """Plain float tensors in safetensors files."""

    name = "none"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes safetensors without a quantization section."""
        if checkpoint.container != "safetensors":
            return [f"a {checkpoint.container} file says itself how its tensors are quantized"]
        if checkpoint.quantization_config is not None:
            method = checkpoint.quantization_config.get("quant_method", "an unnamed method")
            return [f"the checkpoint is quantized with {str(method)[:80]}"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> UnquantizedMethod:
        """The method; it needs nothing from the checkpoint."""
        return UnquantizedMethod()


class UnquantizedMethod:
    """Reads ``<layer>.weight`` as it is stored."""

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer's matrix. Raises ``ValueError`` when it is absent, misshapen or no float tensor."""
        return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        return None
