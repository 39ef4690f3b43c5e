"""Which layers of a bitsandbytes checkpoint are 4-bit, int8 or plain: each layer's own tensors say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from hundredfold_bitsandbytes.forms import form_of
from hundredfold_bitsandbytes.names import SCALES, STATES

QUANT_METHOD = "bitsandbytes"

_FLAGS = ("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit")


class BitsAndBytes:
    """bitsandbytes checkpoints: nf4 and fp4, with and without double quantization, and int8."""

    name = "bitsandbytes"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes safetensors that name bitsandbytes, or as old ones do only its flags."""
        config = checkpoint.quantization_config
        if checkpoint.container != "safetensors" or config is None:
            return ["reads safetensors whose quant_method is bitsandbytes"]
        method = config.get("quant_method")
        if method != QUANT_METHOD and not (method is None and any(flag in config for flag in _FLAGS)):
            return [f"reads safetensors whose quant_method is bitsandbytes, not {str(method)[:80]!r}"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> BitsAndBytesMethod:
        """The method. Raises ``ValueError`` when the flags are no truth values, or set both widths."""
        config = checkpoint.quantization_config or {}
        four, eight = (_flag(config, f"load_in_{bits}bit") for bits in (4, 8))
        if four and eight:
            raise ValueError("load_in_4bit and load_in_8bit are both set")
        return BitsAndBytesMethod(config)


class BitsAndBytesMethod:
    """Reads every layer by the tensors it has: what ``llm_int8_skip_modules`` left out is plain floats."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        self._section = section

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer's weight. Raises ``ValueError`` naming layer and tensor."""
        names = tensors.names()
        if any(f"{layer.name}.{state}" in names for state in STATES):
            from hundredfold_bitsandbytes.four_bit import read_four_bit  # torch, which estimates do without

            return read_four_bit(layer, tensors)
        if f"{layer.name}.{SCALES}" in names:
            from hundredfold_bitsandbytes.int8 import read_int8  # the same

            return read_int8(layer, tensors)
        weight = f"{layer.name}.weight"
        encoding = tensors.describe(weight).encoding if weight in names else None
        if encoding is not None and encoding not in FLOATS:
            parts = " or ".join(f"'{layer.name}.{part}'" for part in (*STATES, SCALES))
            raise ValueError(
                f"layer '{layer.name}': tensor '{weight}' is {encoding}, but what says how to read it is "
                f"missing: {parts}"
            )
        return DenseWeight(read_tensor(layer, tensors, encodings=FLOATS))

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        return form_of(layer, self._section)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, config.get(f"_{key}"))
    if not isinstance(value, bool | None):
        raise ValueError(f"{key} is {str(value)[:80]!r}, expected is true or false")
    return bool(value)
