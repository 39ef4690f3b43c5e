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
    one_zero: bool = False
    """Whether all groups share a zero point, which memory then does not hold."""

    @property
    def halves(self) -> bool:
        """Whether scales and offsets stay float16 in memory: products of two numbers need a float32."""
        zero = 0 if self.one_zero else self.zero_bits
        return self.scale_bits in (0, 16) and zero in (0, 16)

    @property
    def offsets(self) -> bool:
        """Whether memory holds an offset for each group."""
        return self.zero_bits > 0 and not self.one_zero

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

_GGUF_DENSE = {  # bytes of a block and its weights, scales included
    "Q8_K": (292, 256), "IQ1_S": (50, 256), "IQ1_M": (56, 256), "IQ2_XXS": (66, 256), "IQ2_XS": (74, 256),
    "IQ2_S": (82, 256), "IQ3_XXS": (98, 256), "IQ3_S": (110, 256), "TQ1_0": (54, 256), "TQ2_0": (66, 256),
}  # fmt: skip
"""What becomes dense at load."""
_GGUF_PACKED = {
    "Q4_0": Form("Q4_0", Kind.GROUPED, 4, 32, 16),
    "Q4_1": Form("Q4_1", Kind.GROUPED, 4, 32, 16, 16),
    "Q5_0": Form("Q5_0", Kind.GROUPED, 5, 32, 16),
    "Q5_1": Form("Q5_1", Kind.GROUPED, 5, 32, 16, 16),
    "Q8_0": Form("Q8_0", Kind.GROUPED, 8, 32, 16),
    "Q2_K": Form("Q2_K", Kind.GROUPED, 2, 16, 5, 5),
    "Q3_K": Form("Q3_K", Kind.GROUPED, 3, 16, 7),
    "Q4_K": Form("Q4_K", Kind.GROUPED, 4, 32, 8, 8),
    "Q5_K": Form("Q5_K", Kind.GROUPED, 5, 32, 8, 8),
    "Q6_K": Form("Q6_K", Kind.GROUPED, 6, 16, 9),
    "IQ4_NL": Form("IQ4_NL", Kind.CODEBOOK, 4, 32, 16),
    "IQ4_XS": Form("IQ4_XS", Kind.CODEBOOK, 4, 32, 8),
    "MXFP4": Form("MXFP4", Kind.CODEBOOK, 4, 32, 8),
}


def gguf(name: str) -> Form:
    """A GGUF type. Raises ``KeyError`` for an unknown one."""
    if name in _GGUF_PACKED:
        return _GGUF_PACKED[name]
    if name in _GGUF_DENSE:
        size, weights = _GGUF_DENSE[name]
        return Form(name, Kind.DENSE, size * 8 / weights)
    return dense(name)
