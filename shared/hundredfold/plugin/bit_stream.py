"""Integer codes out of packed bytes: what formats that pack several codes in a word have in common.

Only methods of the tensors that are passed in are used, so that importing this does not import torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def unpack(stream: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` codes of ``bits`` bits in each row of bytes, ``stream`` uint8[N, bytes].

    Each row is one run of bits, the lowest bit of the first byte first, so that codes may cross bytes and
    words: little-endian words of any size are read as their bytes. Returns uint8[N, count]. Raises
    ``ValueError`` when a row is too short.
    """
    rows, size = stream.shape
    if size * 8 < count * bits:
        raise ValueError(f"{count} codes of {bits} bits take {count * bits} bits, a row has {size * 8}")
    common = math.gcd(bits, 8)
    run_bytes, run_codes = bits // common, 8 // common  # the shortest run of codes that ends with a byte
    runs = -(-count // run_codes)
    if size != runs * run_bytes:
        padded = stream.new_zeros((rows, runs * run_bytes))
        kept = min(size, runs * run_bytes)
        padded[:, :kept] = stream[:, :kept]
        stream = padded
    packed = stream.reshape(rows, runs, run_bytes)
    codes = stream.new_empty((rows, runs, run_codes))
    for place in range(run_codes):
        byte, shift = divmod(place * bits, 8)
        code = packed[..., byte] >> shift
        if shift + bits > 8:
            code = code | packed[..., byte + 1] << (8 - shift)
        codes[..., place] = code & ((1 << bits) - 1)
    return codes.view(rows, -1)[:, :count]
