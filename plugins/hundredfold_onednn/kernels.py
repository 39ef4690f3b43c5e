"""Linear layers on CPU through oneDNN with weights packed once, the way torch's own compiler does it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import API_VERSION, InputTransform, LinearSpec, Reasons
from hundredfold.plugin.dequantize import dequantize, transform_input

PACKED_FOR = 64
"""Rows of input that oneDNN packs for; neither 1 row nor 256 is measurably slower than packed for itself."""

SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, 257, 16))
"""Rows of the products that are made: an input is padded to the next, and a longer one is cut.

oneDNN compiles code for each number of rows it meets and torch keeps it, a megabyte for each layer shape: a
server that meets every number would grow by gigabytes, and stall at each new one.
"""
PIECES = {torch.float32: (256,), torch.bfloat16: (2048, 1024, 512, 256)}
"""What longer inputs are cut into, largest first: putting the pieces together costs bf16 more than fp32, and
fp32 keeps to sizes that ``_least_rows`` covers."""

TRIED = (1, 2, 4, 8, 16, 64, 256)
TRIED_FEATURES = 8192


@dataclass(frozen=True, slots=True)
class OneDnnLinear:
    """A dense matrix in oneDNN's blocked arrangement."""

    packed: Tensor
    bias: Tensor | None
    transform: InputTransform | None
    least_rows: int
    nbytes: int
    recipe: str

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]."""
        x = transform_input(x, self.transform)
        parts, done = [], 0
        while len(x) - done > SIZES[-1]:
            size = next(size for size in PIECES[x.dtype] if size <= len(x) - done)
            parts.append(_product(x[done : done + size], self.packed, self.bias))
            done += size
        last = self._padded(x[done:])
        return torch.cat([*parts, last]) if parts else last

    def _padded(self, x: Tensor) -> Tensor:
        rows = len(x)
        size = SIZES[bisect_left(SIZES, max(rows, self.least_rows))]
        if size == rows:
            return _product(x, self.packed, self.bias)
        return _product(F.pad(x, (0, 0, 0, size - rows)), self.packed, self.bias)[:rows]


class OneDnnKernels:
    """Dense products in bf16 and fp32 with weights packed at load."""

    name = "onednn"
    api_version = API_VERSION
    priority = 10

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight where torch was built with oneDNN and the processor has the type."""
        if spec.device.type != "cpu":
            return [f"runs on cpu, not on {spec.device.type}"]
        if spec.dtype not in (torch.float32, torch.bfloat16):
            return [f"computes in float32 and bfloat16, not in {_name(spec.dtype)}"]
        problem = _problem(spec.dtype)
        return [problem] if problem else []

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> OneDnnLinear:
        """Dequantize to the compute type and pack."""
        weight = dequantize(spec.weight, spec.dtype)
        bias = None if bias is None else bias.to(spec.dtype)
        return OneDnnLinear(
            packed=_pack(weight),
            bias=bias,
            transform=spec.weight.transform,
            least_rows=_least_rows(min(len(weight), TRIED_FEATURES), weight.shape[1], spec.dtype),
            nbytes=weight.nbytes + (0 if bias is None else bias.nbytes),
            recipe=f"weights dequantized at load to {_name(spec.dtype)} and packed, oneDNN's product",
        )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
    return packed


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y


@cache
def _least_rows(features: int, columns: int, dtype: torch.dtype) -> int:
    """From which size on a row gets the same bits in every product, found by trying; 1 if from none.

    What a request is told shall not depend on how many others are beside it.
    """
    random = torch.Generator().manual_seed(columns)
    packed = _pack(torch.randn(features, columns, generator=random).to(dtype))
    x = torch.randn(TRIED[-1], columns, generator=random).to(dtype)
    whole = _product(x, packed, None)
    differing = [size for size in TRIED if not torch.equal(_product(x[:size], packed, None), whole[:size])]
    if not differing:
        return 1
    above = TRIED.index(differing[-1]) + 1
    return TRIED[above] if above < len(TRIED) - 1 else 1


@cache
def _problem(dtype: torch.dtype) -> str:
    """Why this torch on this processor cannot, found by trying; empty when it can."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch was built without oneDNN"
    try:
        packed = _pack(torch.ones(16, 16, dtype=dtype))
        y = _product(torch.ones(1, 16, dtype=dtype), packed, None)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"oneDNN refuses {_name(dtype)} here: {str(error).splitlines()[0]}"
    if not bool((y == 16).all()):
        return f"oneDNN computes {_name(dtype)} wrongly here"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
