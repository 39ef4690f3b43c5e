"""Quantizers: what they make stands for the matrix they got, row by row, and the matrix is left as it was."""

from __future__ import annotations

import torch

from hundredfold.plugin import LayerRequest, Quantizer
from hundredfold.plugin.testing.forms import check_stated
from hundredfold.plugin.testing.quantization import check_weight
from hundredfold.plugin.testing.reference import reference_linear
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require

SHAPES = ((48, 64), (33, 96), (7, 1), (5, 30), (40, 576))
"""Output and input features."""


def check_quantizer(quantizer: Quantizer, *, tolerance: float) -> Report:
    """Quantize random matrices of several shapes and types.

    ``tolerance`` is the largest ‖made - matrix‖ / ‖matrix‖ that the author promises. Also checked: a row
    does not depend on the others, rows of zeros stay zeros, and what is made is what was stated beforehand,
    if anything was. Raises ``NonConformance``.
    """
    check_plugin("hundredfold.quantizers", quantizer)
    report = Report()
    random = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            case = f"{quantizer.name}, {list(shape)}, {str(dtype).removeprefix('torch.')}"
            layer = LayerRequest("suite.layer", shape)
            reasons = checked_reasons(quantizer, case, quantizer.refuses(layer))
            if reasons:
                report.refused[case] = reasons
                continue
            matrix = torch.randn(shape, generator=random).to(dtype)
            matrix[-1] = 0
            made = _made(quantizer, layer, matrix, case)
            error = float((made - matrix.double()).norm() / matrix.double().norm())
            require(error <= tolerance, f"{case}: relative error {error:.3g} is over {tolerance:g}")
            require(not bool(made[-1].any()), f"{case}: a row of zeros became {made[-1]}")
            part = LayerRequest(layer.name, (shape[0] // 2, shape[1]))
            alone = _made(quantizer, part, matrix[: part.shape[0]], case)
            same = torch.allclose(alone, made[: part.shape[0]], rtol=1e-9, atol=1e-12)
            require(same, f"{case}: a row depends on the others")
            report.accepted.append(case)
    require(bool(report.accepted), f"{quantizer.name} refuses every layer: {report.refused}")
    return report


def _made(quantizer: Quantizer, layer: LayerRequest, matrix: torch.Tensor, case: str) -> torch.Tensor:
    before = matrix.clone()
    weight = quantizer.quantize(layer, matrix)
    require(torch.equal(matrix, before), f"{case}: the matrix was changed")
    check_weight(weight, layer.shape, case)
    check_stated(quantizer, layer, weight, case)
    return reference_linear(weight, torch.eye(layer.shape[1], dtype=torch.float64)).T
