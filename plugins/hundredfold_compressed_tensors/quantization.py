"""The plugin: which checkpoints are of this format, and what each of their layers is."""

from __future__ import annotations

from dataclasses import dataclass, field

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
from hundredfold.plugin.side_scales import check_cache_scales, check_side_scales, remarks_on
from hundredfold_compressed_tensors.config import QUANT_METHOD, Config, Format, Scheme, read_config
from hundredfold_compressed_tensors.forms import form_of


class CompressedTensors:
    """Safetensors as llm-compressor writes them."""

    name = "compressed-tensors"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes safetensors whose ``quant_method`` says so; ``bind`` looks at the rest."""
        config = checkpoint.quantization_config or {}
        if checkpoint.container != "safetensors" or config.get("quant_method") != QUANT_METHOD:
            return [f"reads safetensors whose quant_method is {QUANT_METHOD}"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> CompressedTensorsMethod:
        """The method for this checkpoint. Raises ``ValueError`` naming the key at fault."""
        return CompressedTensorsMethod(read_config(checkpoint.quantization_config or {}))


@dataclass(slots=True)
class CompressedTensorsMethod:
    """One checkpoint's schemes."""

    config: Config
    cache_scales: int | None = None
    """Tensors with scales of keys and values, once they were looked for."""
    static_inputs: int = 0
    """Layers whose checkpoint has fixed scales for their inputs."""
    _used: dict[str, Scheme] = field(default_factory=dict)

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer: what the configuration leaves out is read as floats, and as nothing else."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer. Raises ``ValueError`` naming layer, tensor and reason."""
        if self.cache_scales is None:
            self.cache_scales = check_cache_scales(tensors)
        scheme = self.config.scheme_of(layer.name)
        if scheme is None or scheme.weights is None or scheme.format is Format.DENSE:
            return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))
        self.static_inputs += check_side_scales(layer, tensors)
        self._used[scheme.key] = scheme
        from hundredfold_compressed_tensors.layers import READERS  # torch, which estimates do without

        return READERS[scheme.format](layer, tensors, scheme.weights)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        scheme = self.config.scheme_of(layer.name)
        if scheme is None or scheme.weights is None or scheme.format is Format.DENSE:
            return None
        return form_of(layer, scheme.format, scheme.weights)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was read and is not done to the letter; see ``QuantizationMethod``."""
        used = self._used.values()
        said = [
            f"meant for inputs in {inputs}; activations say what they are here"
            for inputs in dict.fromkeys(scheme.inputs for scheme in used if scheme.inputs)
        ]
        if any(scheme.outputs for scheme in used):
            said.append("outputs stay floats, though the checkpoint quantizes some")
        if self.config.kv_cache:
            said.append(f"meant for a cache in {self.config.kv_cache}; kv_cache_dtype says what it is here")
        return (*said, *remarks_on(self.static_inputs, self.cache_scales or 0))
