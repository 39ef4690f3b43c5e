"""4-bit weights of bitsandbytes: packed indices into a codebook, scales by block, perhaps quantized too.

Layout: https://github.com/bitsandbytes-foundation/bitsandbytes (``QuantState.as_dict``). Two indices a byte,
the first in the high half, over the flattened matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import Codebook4Weight, LayerRequest, StoredTensor, TensorSource
from hundredfold.plugin.reading import find_tensor, read_tensor
from hundredfold_bitsandbytes.codebooks import CODEBOOKS
from hundredfold_bitsandbytes.names import STATE
from hundredfold_bitsandbytes.quant_state import Nested, QuantState, parse_quant_state


def read_four_bit(layer: LayerRequest, tensors: TensorSource) -> Codebook4Weight:
    """The layer's weight. Raises ``ValueError`` naming layer and tensor."""
    kind, state = _state(layer, tensors)
    numbers = layer.shape[0] * layer.shape[1]
    packed = _bytes(layer, tensors, (numbers + 1) // 2)
    scales = _scales(layer, tensors, -(-numbers // state.block_size), state.nested)
    return Codebook4Weight(
        codes=unpack(packed, layer.shape),
        codebook=_codebook(layer, tensors, kind),
        scales=scales,
        group_size=state.block_size,
    )


def unpack(packed: Tensor, shape: tuple[int, int]) -> Tensor:
    """Two indices a byte, uint8[ceil(N * K / 2)], to uint8[N, K]."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).flatten()[: shape[0] * shape[1]].view(shape)


def _state(layer: LayerRequest, tensors: TensorSource) -> tuple[str, QuantState]:
    """The record and which of the codebooks it is for."""
    found = [kind for kind in CODEBOOKS if f"{layer.name}.{STATE}{kind}" in tensors.names()]
    if len(found) > 1:
        raise ValueError(f"layer '{layer.name}' has quant states of {' and '.join(found)}")
    name = f"{layer.name}.{STATE}{found[0]}"
    stored = tensors.describe(name)
    if stored.encoding != "U8" or len(stored.shape) != 1 or stored.raw.nbytes != stored.shape[0]:
        raise _wrong(
            layer, stored, f"is {stored.encoding} {stored.shape} of {stored.raw.nbytes} bytes, no text"
        )
    try:
        state = parse_quant_state(stored.raw.tobytes(), found[0])
    except ValueError as error:
        raise _wrong(layer, stored, str(error)) from None
    if state.shape != layer.shape:
        raise _wrong(layer, stored, f"is of a weight of {list(state.shape)}, expected is {list(layer.shape)}")
    return found[0], state


def _bytes(layer: LayerRequest, tensors: TensorSource, wanted: int) -> Tensor:
    """The packed indices, uint8[wanted]. They may be stored as any type (``bnb_4bit_quant_storage``)."""
    name = f"{layer.name}.weight"
    if name not in tensors.names():
        raise ValueError(f"layer '{layer.name}': tensor '{name}' is missing")
    stored = tensors.describe(name)
    if stored.raw.nbytes != wanted:
        raise _wrong(
            layer,
            stored,
            f"has {stored.raw.nbytes} bytes, a 4-bit weight of {list(layer.shape)} takes {wanted}",
        )
    return torch.from_numpy(stored.raw.copy())


def _codebook(layer: LayerRequest, tensors: TensorSource, kind: str) -> Tensor:
    """The sixteen values, float32. The library computes with its own, so others are another format."""
    stored = read_tensor(layer, tensors, "weight.quant_map", shape=(16,), encodings=("F32",))
    own = torch.tensor(CODEBOOKS[kind], dtype=torch.float32)
    if not torch.allclose(stored, own, rtol=0, atol=1e-6):
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.weight.quant_map' does not hold the values of {kind}"
        )
    return own


def _scales(layer: LayerRequest, tensors: TensorSource, blocks: int, nested: Nested | None) -> Tensor:
    """float32[blocks]."""
    if nested is None:
        return _finite(layer, tensors, "weight.absmax", (blocks,))
    codes = read_tensor(layer, tensors, "weight.absmax", shape=(blocks,), encodings=("U8",))
    values = _finite(layer, tensors, "weight.nested_quant_map", (256,))
    outer = _finite(layer, tensors, "weight.nested_absmax", (-(-blocks // nested.block_size),))
    scales = values[codes.long()] * outer.repeat_interleave(nested.block_size)[:blocks]
    return scales + nested.offset


def _finite(layer: LayerRequest, tensors: TensorSource, part: str, shape: tuple[int, ...]) -> Tensor:
    values = read_tensor(layer, tensors, part, shape=shape, encodings=("F32",))
    if not bool(torch.isfinite(values).all()):
        raise _wrong(
            layer, find_tensor(layer, tensors, part, shape=shape), "holds numbers that are not finite"
        )
    return values


def _wrong(layer: LayerRequest, stored: StoredTensor, problem: str) -> ValueError:
    return ValueError(f"layer '{layer.name}': tensor '{stored.name}' {problem}")
