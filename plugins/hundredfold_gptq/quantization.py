"""Which layers of a GPTQ checkpoint are quantized, and how: the section says it, and the tensors."""

from __future__ import annotations

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    LayerOutline,
    LayerRequest,
    LayerRole,
    Reasons,
    TensorSource,
    WeightForm,
    Zero,
)
from hundredfold.plugin.forms import grouped, words
from hundredfold.plugin.reading import FLOATS, read_tensor
from hundredfold_gptq.config import GptqConfig, refusals


class Gptq:
    """Checkpoints of AutoGPTQ, GPTQModel and of auto-round in their layout."""

    name = "gptq"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """The section's own words decide."""
        if checkpoint.container != "safetensors":
            return [f"reads safetensors, not {checkpoint.container}"]
        return refusals(checkpoint.quantization_config or {})

    def bind(self, checkpoint: CheckpointInfo) -> GptqMethod:
        """The method. Raises ``ValueError`` naming the key at fault."""
        return GptqMethod(GptqConfig.read(checkpoint.quantization_config or {}))


class GptqMethod:
    """One checkpoint's layers. Which of them are quantized, their tensors say."""

    def __init__(self, config: GptqConfig) -> None:
        self._config = config

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer that no rule leaves as it was."""
        return self._config.layers.of(layer.name) is not None

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer, plain where it has no ``qweight``. Raises ``ValueError`` naming layer and tensor."""
        names = tensors.names()
        form = self._config.layers.of(layer.name)
        if f"{layer.name}.qweight" not in names and f"{layer.name}.weight" in names:
            return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))
        if form is None:
            raise ValueError(f"layer '{layer.name}': a rule leaves it as it was, its tensors do not")
        from hundredfold_gptq.layers import read_layer  # it needs torch, which estimates do without

        return read_layer(layer, tensors, form, self._config)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        form, rows, columns = self._config.layers.of(layer.name), *layer.shape
        usual = layer.role is LayerRole.LINEAR or (layer.role is LayerRole.HEAD and self._config.head)
        if form is None or not layer.is_quantized("qweight", usual):
            return None
        group = None if form.group_size == -1 else form.group_size
        groups = 1 if group is None else -(-columns // group)
        stored = words(columns, form.bits) * rows + groups * words(rows, form.bits)
        stored += layer.nbytes("scales", groups * rows * 2) + layer.nbytes("g_idx", columns * 4)
        zero = None if form.symmetric else Zero.POINT
        return grouped(
            "gptq", layer, form.bits, group, stored, half_scales=layer.is_half("scales"), zero=zero
        )
