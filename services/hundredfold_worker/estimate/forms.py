"""How a matrix is written down: its bits, its scales, and the bytes that come of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hundredfold_worker.estimate.parts import Part


@enum.unique
class Kind(enum.Enum):
    """The canonical weight that a format becomes."""

    DENSE = "dense"
    GROUPED = "grouped"
    CHANNEL = "channel"
    FLOAT8 = "float8"
    CODEBOOK = "codebook"


@dataclass(frozen=True, slots=True)
class Form:
    """One way of writing a matrix."""

    label: str
    """For people: ``bf16``, ``gptq 4-bit g128``."""
    kind: Kind
    bits: float
    """Of a weight as stored."""
    group: int | None = None
    """Columns that share a scale; ``None`` for the whole row."""
    scale_bits: float = 0
    """Of a group's scale as stored; 0 without scales."""
    zero_bits: float = 0
    """Of a group's zero point or offset as stored; 0 without."""
    column_bits: float = 0
    """Of what each input column has, such as the group that it is of."""

    def groups(self, part: Part) -> int:
        """Groups of a matrix, of one copy."""
        group = part.columns if self.group is None else self.group
        return part.rows * -(-part.columns // group)

    def stored(self, part: Part) -> int:
        """Bytes of a matrix in a checkpoint, all copies."""
        bits = part.rows * part.columns * self.bits
        bits += self.groups(part) * (self.scale_bits + self.zero_bits) + part.columns * self.column_bits
        return int(-(-bits // 8)) * part.copies


def dense(name: str) -> Form:
    """A float type by torch's, safetensors' or our name. Raises ``KeyError`` for an unknown one."""
    short, bits = _FLOATS[name.removeprefix("torch.").lower()]
    return Form(short, Kind.DENSE, bits)


_FLOATS = {
    **dict.fromkeys(("float32", "f32", "fp32", "float"), ("fp32", 32)),
    **dict.fromkeys(("bfloat16", "bf16"), ("bf16", 16)),
    **dict.fromkeys(("float16", "f16", "fp16", "half"), ("fp16", 16)),
    **dict.fromkeys(("float64", "f64", "double"), ("fp64", 64)),
}

_GGUF_BITS = {  # bytes of a block and its weights, scales included
    "Q4_0": (18, 32), "Q4_1": (20, 32), "Q5_0": (22, 32), "Q5_1": (24, 32), "Q8_0": (34, 32),
    "Q2_K": (84, 256), "Q3_K": (110, 256), "Q4_K": (144, 256), "Q5_K": (176, 256), "Q6_K": (210, 256),
    "Q8_K": (292, 256), "IQ1_S": (50, 256), "IQ1_M": (56, 256), "IQ2_XXS": (66, 256), "IQ2_XS": (74, 256),
    "IQ2_S": (82, 256), "IQ3_XXS": (98, 256), "IQ3_S": (110, 256), "IQ4_NL": (18, 32), "IQ4_XS": (136, 256),
    "TQ1_0": (54, 256), "TQ2_0": (66, 256), "MXFP4": (17, 32),
}  # fmt: skip
_GGUF_PACKED = {
    "Q4_0": Form("Q4_0", Kind.GROUPED, 4, 32, 16),
    "Q4_1": Form("Q4_1", Kind.GROUPED, 4, 32, 16, 16),
    "Q8_0": Form("Q8_0", Kind.GROUPED, 8, 32, 16),
}


def gguf(name: str) -> Form:
    """A GGUF type. Raises ``KeyError`` for an unknown one."""
    if name in _GGUF_PACKED:
        return _GGUF_PACKED[name]
    if name in _GGUF_BITS:
        size, weights = _GGUF_BITS[name]
        return Form(name, Kind.DENSE, size * 8 / weights)
    return dense(name)
