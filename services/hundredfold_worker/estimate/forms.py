"""Plain floats: what they are called, and the form of a matrix of them."""

from __future__ import annotations

from dataclasses import dataclass

from hundredfold.plugin import DenseWeight, WeightForm
from hundredfold_worker.estimate.parts import Part


@dataclass(frozen=True, slots=True)
class Floats:
    """One float type."""

    label: str
    encoding: str
    """As safetensors and GGUF call it."""
    bits: int

    def form(self, part: Part) -> WeightForm:
        """A matrix of them."""
        return WeightForm(self.label, DenseWeight, part.rows * part.columns * self.bits // 8, self.bits)


def floats(name: str) -> Floats:
    """A float type by torch's, safetensors' or our name. Raises ``KeyError`` for an unknown one."""
    return _FLOATS[name.removeprefix("torch.").lower()]


_FLOATS = {
    **dict.fromkeys(("float32", "f32", "fp32", "float"), Floats("fp32", "F32", 32)),
    **dict.fromkeys(("bfloat16", "bf16"), Floats("bf16", "BF16", 16)),
    **dict.fromkeys(("float16", "f16", "fp16", "half"), Floats("fp16", "F16", 16)),
    **dict.fromkeys(("float64", "f64", "double"), Floats("fp64", "F64", 64)),
}
