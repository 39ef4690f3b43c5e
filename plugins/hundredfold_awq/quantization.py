"""Which layers of an AWQ checkpoint are quantized, and how: the section says it, and the tensors."""

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
from hundredfold.plugin.forms import grouped, is_listed, words
from hundredfold.plugin.layer_rules import LayerRules
from hundredfold.plugin.reading import FLOATS, read_tensor
from hundredfold_awq.config import LayerFormat, excepted, read_config, refusals


class Awq:
    """Checkpoints of AutoAWQ, and of others in its layout."""

    name = "awq"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """The section's own words decide."""
        if checkpoint.container != "safetensors":
            return [f"reads safetensors, not {checkpoint.container}"]
        return refusals(checkpoint.quantization_config or {})

    def bind(self, checkpoint: CheckpointInfo) -> AwqMethod:
        """The method. Raises ``ValueError`` naming the key at fault."""
        section = checkpoint.quantization_config or {}
        return AwqMethod(read_config(section), excepted(section))


class AwqMethod:
    """One checkpoint's layers. Which of them are quantized, their tensors say."""

    def __init__(self, layers: LayerRules[LayerFormat], excepted: tuple[str, ...] = ()) -> None:
        self._layers = layers
        self._excepted = excepted

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer that no rule leaves as it was."""
        return self._layers.of(layer.name) is not None

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer, plain where it has no ``qweight``. Raises ``ValueError`` naming layer and tensor."""
        names = tensors.names()
        if f"{layer.name}.qweight" not in names and f"{layer.name}.weight" in names:
            return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))
        form = self._layers.of(layer.name)
        if form is None:
            raise ValueError(f"layer '{layer.name}': a rule leaves it as it was, its tensors do not")
        from hundredfold_awq.layers import read_layer  # it needs torch, which estimates do without

        return read_layer(layer, tensors, form)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        form, rows, columns = self._layers.of(layer.name), *layer.shape
        usual = layer.role is LayerRole.LINEAR and not is_listed(layer.name, self._excepted)
        if form is None or not layer.is_quantized("qweight", usual):
            return None
        group = None if form.group_size == -1 else form.group_size
        groups = 1 if group is None else -(-columns // group)
        stored = (columns + groups) * words(rows, form.bits) + layer.nbytes("scales", groups * rows * 2)
        zero = None if form.symmetric else Zero.POINT
        return grouped("awq", layer, form.bits, group, stored, half_scales=layer.is_half("scales"), zero=zero)
