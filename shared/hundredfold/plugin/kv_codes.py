"""Caches with a scale for each token and kv head, as tensor arithmetic: what attention backends are held to.

Keys and values are quantized apart, each token's head by itself: with ``top`` its largest magnitude and
``limit`` the encoding's largest number (127, or 448 of e4m3), the scale is ``top / limit`` and a code
``x * (limit / top)``, rounded half to even. Where ``top`` is below 2**-96 both are 0; where a number is not
finite the scale is NaN and the codes are 0, so that whoever sees that token becomes NaN. What a token attends
to are codes times scales, its own in the same step included: then pieces of a prompt, shared prefixes and
replays read the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hundredfold.plugin.integer import quantize_rows, scaled
from hundredfold.plugin.kv_cache import Encoding

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_E4M3 = 448
"""The largest number of e4m3 without infinities."""


def encode(encoding: Encoding, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keys or values [..., head_dim] to codes, a byte each, and scales float32[...].

    Codes are int8, or uint8 that hold e4m3. Raises ``ValueError`` for other encodings.
    """
    rows = x.reshape(-1, x.shape[-1])
    if encoding is Encoding.INT8:
        codes, scales = quantize_rows(rows, rows.shape[1])
        scales = scales[:, 0]
    elif encoding is Encoding.FP8:
        codes, scales = _to_e4m3(rows.float())
    else:
        raise ValueError(f"{encoding.value} has no scale for each token and head")
    return codes.view(x.shape), scales.view(x.shape[:-1])


def decode(encoding: Encoding, codes: Tensor, scales: Tensor) -> Tensor:
    """What the codes stand for, float32."""
    if encoding is Encoding.FP8:
        import torch

        codes = codes.view(torch.float8_e4m3fn)
    return codes.float().mul_(scales[..., None])


def _to_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    numbers, scales = scaled(x, LARGEST_E4M3)
    codes = numbers.clamp_(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8), scales
