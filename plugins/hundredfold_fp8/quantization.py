"""Checkpoints whose quant_method is fp8: DeepSeek's, transformers', vLLM's and gptqmodel's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    Float8Weight,
    LayerOutline,
    LayerRequest,
    LayerRole,
    Reasons,
    StoredTensor,
    TensorSource,
    WeightForm,
)
from hundredfold.plugin.float8 import FLOAT8, read_float8_codes
from hundredfold.plugin.forms import float8, is_listed
from hundredfold.plugin.reading import FLOATS, find_tensor, read_scales, read_tensor
from hundredfold.plugin.side_scales import check_cache_scales, check_side_scales, remarks_on

if TYPE_CHECKING:
    from torch import Tensor

QUANT_METHOD = "fp8"
ENCODINGS = {
    **dict.fromkeys(("e4m3", "e4m3fn", "float8_e4m3", "float8_e4m3fn"), "F8_E4M3"),
    **dict.fromkeys(("e5m2", "float8_e5m2"), "F8_E5M2"),
}
"""What writers call a type, and what the file does."""

SCALES = ("weight_scale", "weight_scale_inv")
MAX_BLOCK = 1 << 20
MAX_EXCEPTED = 100_000


class Fp8:
    """8-bit floats with a scale for each matrix, row or block."""

    name = "fp8"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes safetensors whose ``quant_method`` says so; ``bind`` looks at the rest."""
        config = checkpoint.quantization_config or {}
        if checkpoint.container != "safetensors" or config.get("quant_method") != QUANT_METHOD:
            return [f"reads safetensors whose quant_method is {QUANT_METHOD}"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> Fp8Method:
        """The method for this checkpoint. Raises ``ValueError`` naming the key at fault."""
        config = checkpoint.quantization_config or {}
        if config.get("dynamic"):
            raise ValueError("dynamic: rules that differ by layer are not read")
        return Fp8Method(
            encodings=_encodings(config),
            block=_block(config.get("weight_block_size")),
            reciprocal=_reciprocal(config),
            excepted=_excepted(config),
            inputs=_inputs(config),
        )


@dataclass(slots=True)
class Fp8Method:
    """One checkpoint's."""

    encodings: tuple[str, ...]
    block: tuple[int, int] | None
    """Rows and columns that share a scale; ``None`` where a row or the matrix does."""
    reciprocal: bool
    """Scales are what numbers were multiplied by when they were quantized."""
    excepted: tuple[str, ...]
    """Modules that are not quantized."""
    inputs: str
    cache_scales: int | None = None
    static_inputs: int = 0

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer: one whose tensor holds wider floats is read as they are."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer. Raises ``ValueError`` naming layer, tensor and reason."""
        if self.cache_scales is None:
            self.cache_scales = check_cache_scales(tensors)
        self.static_inputs += check_side_scales(layer, tensors)
        stored = find_tensor(layer, tensors, encodings=(*FLOATS, *FLOAT8))
        parts = [part for part in SCALES if f"{layer.name}.{part}" in tensors.names()]
        if stored.encoding in FLOATS:
            if parts:
                raise _contradiction(layer, stored, f"and '{layer.name}.{parts[0]}' is there")
            return DenseWeight(read_tensor(layer, tensors))
        if stored.encoding not in self.encodings:
            raise _contradiction(layer, stored, f"the checkpoint states {' or '.join(self.encodings)}")
        if is_listed(layer.name, self.excepted):
            raise _contradiction(layer, stored, "and the checkpoint lists it as not converted")
        if len(parts) != 1:
            names = " and ".join(f"'{layer.name}.{part}'" for part in SCALES)
            raise _contradiction(layer, stored, f"{'both' if parts else 'neither'} of {names} is there")
        codes = read_float8_codes(layer, tensors, encodings=self.encodings)
        block = self.block and (min(self.block[0], layer.shape[0]), min(self.block[1], layer.shape[1]))
        return Float8Weight(codes, self._scales(layer, tensors, parts[0]), block)

    def _scales(self, layer: LayerRequest, tensors: TensorSource, part: str) -> Tensor:
        """float32, one for each row or block, to be multiplied by."""
        rows, columns = layer.shape
        found = tensors.describe(f"{layer.name}.{part}").shape
        if self.block is not None:
            wanted: tuple[int, ...] = (-(-rows // self.block[0]), -(-columns // self.block[1]))
        else:
            wanted = found if found in ((), (1,), (1, 1), (rows,)) else (rows, 1)
        scales = read_scales(layer, tensors, part, shape=wanted).float()
        if self.reciprocal:
            scales = scales.reciprocal()
            if not bool(scales.isfinite().all()):
                raise ValueError(
                    f"layer '{layer.name}': tensor '{layer.name}.{part}' holds zeros to divide by"
                )
        return scales if self.block is not None else scales.reshape(-1, 1).expand(rows, 1).contiguous()

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        header = layer.header()
        listed = layer.role is not LayerRole.LINEAR or is_listed(layer.name, self.excepted)
        if listed if header is None else header.encoding not in FLOAT8:
            return None
        rows, columns = layer.shape
        block = self.block
        scales = 1 if block is None else -(-rows // block[0]) * -(-columns // block[1])
        scale = next((part for part in SCALES if layer.header(part) is not None), SCALES[0])
        stored = rows * columns + layer.nbytes(scale, 4 * scales)
        return float8("" if block is None else f"{block[0]}x{block[1]}", stored)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was read and is not done to the letter; see ``QuantizationMethod``."""
        meant = [f"meant for {self.inputs} 8-bit float inputs, which stay floats"] if self.inputs else []
        return (*meant, *remarks_on(self.static_inputs, self.cache_scales or 0))


def _contradiction(layer: LayerRequest, stored: StoredTensor, what: str) -> ValueError:
    return ValueError(f"layer '{layer.name}': tensor '{stored.name}' is {stored.encoding}, {what}")


def _encodings(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the weights may be; either type where the checkpoint does not say."""
    for key in ("fmt", "format", "weight_dtype"):
        stated = config.get(key)
        if stated is None or stated == QUANT_METHOD:
            continue
        if not isinstance(stated, str) or stated not in ENCODINGS:
            raise ValueError(
                f"{key} is {str(stated)[:80]!r}, which is not read; read are {', '.join(ENCODINGS)}"
            )
        return (ENCODINGS[stated],)
    return FLOAT8


def _block(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_size, value)):
        raise ValueError(
            f"weight_block_size is {str(value)[:80]!r}, expected are two whole numbers from 1 to {MAX_BLOCK}"
        )
    return value[0], value[1]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BLOCK


def _reciprocal(config: Mapping[str, Any]) -> bool:
    """gptqmodel calls the reciprocal of a scale ``weight_scale_inv``; DeepSeek calls the scale itself so.

    Only gptqmodel has the two keys.
    """
    semantics = config.get("weight_scale_semantics")
    if semantics not in (None, "inverse"):
        raise ValueError(f"weight_scale_semantics is {str(semantics)[:80]!r}; read is 'inverse'")
    return semantics is not None or config.get("weight_scale_method") is not None


def _excepted(config: Mapping[str, Any]) -> tuple[str, ...]:
    names: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers"):
        value = config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise ValueError(f"{key} is {str(value)[:80]!r}, expected is a list of names")
        names += value
    if len(names) > MAX_EXCEPTED:
        raise ValueError(f"modules_to_not_convert has {len(names)} names, the limit is {MAX_EXCEPTED}")
    return tuple(dict.fromkeys(names))


def _inputs(config: Mapping[str, Any]) -> str:
    scheme = config.get("activation_scheme")
    if scheme not in (None, "static", "dynamic"):
        raise ValueError(f"activation_scheme is {str(scheme)[:80]!r}; read are static and dynamic")
    return scheme or ""
