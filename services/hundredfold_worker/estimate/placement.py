"""Which layers would lie on which device: in order, each as far as its memory goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold.plugin import Encoding
from hundredfold_worker.estimate.fit import Fit
from hundredfold_worker.estimate.parts import Outline
from hundredfold_worker.estimate.resident import Layout

DISK = "disk"


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the bytes of it that may be used."""

    name: str
    limit: int


@dataclass(frozen=True, slots=True)
class Placed:
    """What lies on a device."""

    device: str
    limit: int | None
    first: int | None
    """Layers from here …"""
    last: int | None
    """… to here; ``None`` for none."""
    ends: tuple[str, ...]
    """``embedding``, ``output``: what else lies there."""
    weights: int
    cache: int
    working: int
    """Libraries and a step."""

    @property
    def used(self) -> int:
        """Bytes."""
        return self.weights + self.cache + self.working


def place(
    outline: Outline, sizes: Fit, kept: Layout, encoding: Encoding, devices: Sequence[Device], sequences: int
) -> tuple[Placed, ...]:
    """Fill the devices in order; what is left over stays on disk. Cache lies beside its layer.

    Without devices nothing is placed.
    """
    if not devices:
        return ()
    tokens = sequences * sizes.blocks_per_sequence * sizes.block_size
    caches = [kept.cache(layer, encoding) * tokens for layer in outline.caches]
    outside = sizes.by_layer.get(None, 0)
    working = sizes.base + sizes.step
    blocks = [(outside, 0), *((sizes.by_layer.get(i, 0), caches[i]) for i in range(outline.num_layers))]
    placed: list[Placed] = []
    at = 0
    for device in devices:
        room = device.limit - working
        begun, weights, cache = at, 0, 0
        while at < len(blocks) and weights + cache + sum(blocks[at]) <= room:
            weights, cache = weights + blocks[at][0], cache + blocks[at][1]
            at += 1
        placed.append(_placed(device.name, device.limit, begun, at, weights, cache, working))
    if at < len(blocks):
        weights, cache = (sum(part) for part in zip(*blocks[at:], strict=True))
        placed.append(_placed(DISK, None, at, len(blocks), weights, cache, 0))
    return tuple(placed)


def _placed(
    name: str, limit: int | None, begun: int, end: int, weights: int, cache: int, working: int
) -> Placed:
    """Block 0 is embedding and output layer, block n layer n - 1."""
    ends = ("embedding", "output") if begun == 0 and end > 0 else ()
    first, last = max(begun, 1) - 1, end - 2
    there = last >= first
    used = working if end > begun else 0
    return Placed(name, limit, first if there else None, last if there else None, ends, weights, cache, used)
