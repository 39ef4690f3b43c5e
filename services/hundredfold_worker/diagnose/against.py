"""A model against another of the same shape, usually the dense one: the products that differ, by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from hundredfold.findings import Finding, Severity, fine
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.quality.layers import LayerLoss, LayerLosses
from hundredfold_worker.quality.suggest import kind_of, suggest

BROKEN = 0.5
"""Error from which on a product is not lossy but wrong: 3-bit rounding stays below a third."""
LOSSY = 0.1


def losses(model: LoadedModel, dense: LoadedModel, ids: Sequence[int]) -> tuple[LayerLoss, ...]:
    """What each product of ``model`` loses against ``dense``. Raises ``StartError`` for other shapes."""
    heard = LayerLosses(dense, model)
    with torch.inference_mode():
        heard.add(torch.tensor(list(ids)))
    return heard.worst_first()


def check_against(found: Sequence[LayerLoss]) -> Iterator[Finding]:
    """Broken products first, then lossy ones."""
    odd = [loss.pattern for loss in found if not math.isfinite(loss.error)]
    if odd:
        yield Finding(
            "layer-non-finite",
            Severity.ERROR,
            f"outputs of {_list(odd)} are not finite",
            "scales or weights hold NaN or infinities",
            "quantize these layers again, or keep them dense",
        )
    finite = [loss for loss in found if math.isfinite(loss.error)]
    broken = [loss for loss in finite if loss.error >= BROKEN]
    if broken:
        yield Finding(
            "layer-broken",
            Severity.ERROR,
            f"{len(broken)} of {len(found)} products have little to do with the dense model's: "
            f"{_list([loss.pattern for loss in broken])} (error {broken[0].error:.0%}, cosine "
            f"{broken[0].cosine:.3f})",
            _cause(broken, len(found)),
            "quantize them again, or take the checkpoint from its source again",
        )
    lossy = [loss for loss in finite if LOSSY <= loss.error < BROKEN]
    if lossy:
        patterns = suggest(finite)
        keep = f"keep wider: {','.join(patterns)}" if patterns else "use more bits or smaller groups"
        yield Finding(
            "layer-lossy",
            Severity.WARNING,
            f"{len(lossy)} of {len(found)} products lose {LOSSY:.0%} or more, the worst is "
            f"{lossy[0].pattern} with {lossy[0].error:.0%}",
            "few bits, large groups, or columns with outliers",
            keep,
        )
    if finite and not (odd or broken or lossy):
        yield fine("layers", f"largest error of a product: {finite[0].error:.2%} ({finite[0].pattern})")


def _cause(broken: Sequence[LayerLoss], total: int) -> str:
    kinds = {kind_of(loss.pattern) for loss in broken}
    if len(broken) > total / 2:
        return "the whole checkpoint is read in another layout than it was written, or is of another model"
    if len(broken) > 1 and len(kinds) == 1:
        return f"every {next(iter(kinds))} alike: order of rows, scales of a fused layer, or its zero points"
    return "these tensors are damaged, or their scales or zero points are of another layer"


def _list(patterns: Sequence[str]) -> str:
    shown = ", ".join(patterns[:4])
    return shown + (f" and {len(patterns) - 4} more" if len(patterns) > 4 else "")
