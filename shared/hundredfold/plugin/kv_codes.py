"""Caches of codes and scales, as tensor arithmetic: what attention backends are held to.

Keys and values are quantized apart, each token's head by itself, so nothing is calibrated. What a token
attends to are the numbers that codes stand for, its own in the same step included: then pieces of a prompt,
shared prefixes and replays read the same numbers.

- ``int8``, ``fp8``, ``fp8_e5m2``: with ``top`` a head's largest magnitude and ``limit`` the largest of the
  encoding (127, 448 of e4m3, 57344 of e5m2), the scale is ``top / limit`` and a code ``x * (limit / top)``,
  rounded half to even. Where ``top`` is below 2**-96 both are 0.
- ``int4``: the head's columns are cut in bands of 32, the last of which may be short. A number is
  ``scale * code + least`` with codes 0 to 15, scale and least in float16: ``least`` is the band's smallest
  number, the scale ``max(largest - least, 0) / 15`` of the rounded ``least``, and a code
  ``(x - least) * (1 / scale)``, clamped and rounded half to even. Numbers beyond 65504 are clamped.

Where a number is not finite the scale (and least) is NaN and the codes are 0, so that whoever sees that token
becomes NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hundredfold.plugin.integer import quantize_rows, scaled
from hundredfold.plugin.kv_cache import Encoding

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST_E4M3 = 448
"""The largest number of e4m3 without infinities."""
LARGEST_E5M2 = 57344
BAND = 32
"""Columns of an int4 cache that share a scale."""
LARGEST_HALF = 65504.0


def encode(encoding: Encoding, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keys or values [..., head_dim] to codes and scales.

    Codes are int8, or uint8 that hold 8-bit floats, [..., head_dim], and scales float32[...]. Of int4, codes
    are uint8[..., ceil(head_dim / 2)], the even column in the low half, and scales float16[..., bands, 2]:
    scale and least. Raises ``ValueError`` for other encodings.
    """
    rows = x.reshape(-1, x.shape[-1])
    if encoding is Encoding.INT4:
        codes, scales = _to_int4(rows.float())
        return codes.view(*x.shape[:-1], -1), scales.view(*x.shape[:-1], -1, 2)
    if encoding is Encoding.INT8:
        codes, scales = quantize_rows(rows, rows.shape[1])
        scales = scales[:, 0]
    elif encoding in (Encoding.FP8, Encoding.FP8_E5M2):
        codes, scales = _to_float8(encoding, rows.float())
    else:
        raise ValueError(f"{encoding.value} has no scales")
    return codes.view(x.shape), scales.view(x.shape[:-1])


def decode(encoding: Encoding, codes: Tensor, scales: Tensor, head_dim: int) -> Tensor:
    """What the codes stand for, float32[..., head_dim]."""
    if encoding is Encoding.INT4:
        return _from_int4(codes, scales, head_dim)
    if encoding is not Encoding.INT8:
        codes = codes.view(_float8(encoding)[0])
    return codes.float().mul_(scales[..., None])


def code_bytes(encoding: Encoding, head_dim: int) -> int:
    """Bytes of the codes of one token's key of one head, as ``encode`` gives them."""
    return -(-head_dim // 2) if encoding is Encoding.INT4 else head_dim


def scale_shape(encoding: Encoding, head_dim: int) -> tuple[int, ...]:
    """Scales of one token's key of one head: float16 of int4, else float32."""
    return (-(-head_dim // BAND), 2) if encoding is Encoding.INT4 else ()


def _float8(encoding: Encoding) -> tuple[torch.dtype, int]:
    import torch

    known = {
        Encoding.FP8: (torch.float8_e4m3fn, LARGEST_E4M3),
        Encoding.FP8_E5M2: (torch.float8_e5m2, LARGEST_E5M2),
    }
    return known[encoding]


def _to_float8(encoding: Encoding, x: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    kind, largest = _float8(encoding)
    numbers, scales = scaled(x, largest)
    codes = numbers.clamp_(-largest, largest).to(kind)
    return codes.view(torch.uint8), scales


def _to_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    head_dim = x.shape[1]
    bands = -(-head_dim // BAND)
    # what fills up the last band changes neither its smallest nor its largest number
    filled = torch.cat((x, x[:, -1:].expand(-1, bands * BAND - head_dim)), 1).view(-1, bands, BAND)
    finite = filled.isfinite().all(-1)
    cut = filled.where(finite[..., None], 0.0)
    smallest, largest = (bound.clamp(-LARGEST_HALF, LARGEST_HALF) for bound in (cut.amin(-1), cut.amax(-1)))
    least = smallest.half()
    # torch divides by a plain number by way of a rounded reciprocal
    scale = ((largest - least.float()).clamp(min=0.0) / largest.new_tensor(15.0)).half()
    ratio = (1.0 / scale.float()).where(scale > 0, 0.0)
    codes = ((cut - least.float()[..., None]) * ratio[..., None]).clamp_(0, 15).round_().to(torch.uint8)
    codes = codes.view(len(x), -1)[:, : 2 * code_bytes(Encoding.INT4, head_dim)]
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.contiguous(), torch.stack((scale, least), -1).where(finite[..., None], float("nan"))


def _from_int4(codes: Tensor, scales: Tensor, head_dim: int) -> Tensor:
    import torch

    numbers = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)[..., :head_dim].float()
    scale, least = (
        side.float().repeat_interleave(BAND, -1)[..., :head_dim] for side in (scales[..., 0], scales[..., 1])
    )
    return numbers.mul_(scale).add_(least)
