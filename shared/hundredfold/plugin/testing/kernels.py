"""Kernels against the reference: every weight they accept, every batch size, neighbours left alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hundredfold.plugin import KernelPlugin, Linear, LinearSpec
from hundredfold.plugin.testing.reference import reference_linear
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require
from hundredfold.plugin.testing.samples import Sample, samples

BATCHES = (1, 2, 3, 8, 17, 33)

_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Largest ‖y - reference‖ / ‖reference‖ by activation type: a few roundings of the output."""

_QUANTIZED_INPUT = 2e-2
"""The same where the recipe may quantize the input to 8 bits per token."""


def check_kernel(
    kernel: KernelPlugin,
    *,
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
) -> Report:
    """Compare ``kernel`` with the reference for each canonical weight and activation type that it accepts.

    Also checked: bias, strided input, input left unchanged, one row's NaN kept out of the others, every batch
    size held to the same limit. Raises ``NonConformance``.
    """
    check_plugin("hundredfold.kernels", kernel)
    report = Report()
    where = torch.device(device)
    for dtype in dtypes:
        for sample in samples(where):
            case = f"{sample.name}, {str(dtype).removeprefix('torch.')}"
            spec = LinearSpec("suite.layer", sample.weight, where, dtype)
            reasons = checked_reasons(kernel, case, kernel.refuses(spec))
            if reasons:
                report.refused[case] = reasons
                continue
            _check_layer(kernel, spec, sample, f"{kernel.name}, {case}")
            report.accepted.append(case)
    require(bool(report.accepted), f"{kernel.name} refuses every weight on {device}: {report.refused}")
    return report


def _check_layer(kernel: KernelPlugin, spec: LinearSpec, sample: Sample, case: str) -> None:
    n, k = spec.shape
    limit = max(_TOLERANCE[spec.dtype], _QUANTIZED_INPUT if sample.quantizes_input else 0.0)
    random = torch.Generator().manual_seed(k)
    bias = torch.randn(n, generator=random).to(spec.device, spec.dtype)
    plain = kernel.prepare(spec, None)
    with_bias = kernel.prepare(spec, bias)
    require(isinstance(plain.nbytes, int) and plain.nbytes > 0, f"{case}: nbytes is {plain.nbytes!r}")
    require(isinstance(plain.recipe, str) and plain.recipe != "", f"{case}: recipe is {plain.recipe!r}")
    x = torch.randn(max(BATCHES), k, generator=random).to(spec.device, spec.dtype)
    whole = reference_linear(sample.weight, x)
    for rows in BATCHES:
        y = _run(plain, x[:rows], n, f"{case}, {rows} rows")
        # The same limit for a row wherever it stands: the recipe does not change with the batch.
        _close(y, whole[:rows], limit, f"{case}, {rows} rows")
    _close(_run(with_bias, x, n, f"{case}, bias"), whole + bias.double(), limit, f"{case}, bias")
    wide = torch.randn(5, 2 * k, generator=random).to(spec.device, spec.dtype)
    strided = wide[:, k:]
    _close(
        _run(plain, strided, n, f"{case}, strided input"),
        reference_linear(sample.weight, strided),
        limit,
        f"{case}, strided input",
    )
    poisoned = x[:8].clone()
    poisoned[3] = float("nan")
    y = _run(plain, poisoned, n, f"{case}, NaN in row 3")
    others = [0, 1, 2, 4, 5, 6, 7]
    _close(y[others], whole[others], limit, f"{case}, rows beside a NaN")
    require(bool(torch.isnan(y[3]).any()), f"{case}: the NaN of row 3 vanished from its result")


def _run(layer: Linear, x: Tensor, n: int, case: str) -> Tensor:
    before = x.clone()
    y = layer(x)
    require(y.shape == (len(x), n), f"{case}: shape is {tuple(y.shape)}, wanted is {(len(x), n)}")
    require(y.dtype == x.dtype, f"{case}: type is {y.dtype}, wanted is {x.dtype}")
    require(torch.equal(x.nan_to_num(), before.nan_to_num()), f"{case}: the input was changed")
    return y


def _close(y: Tensor, wanted: Tensor, limit: float, case: str) -> None:
    error = float((y.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))
    require(error <= limit, f"{case}: relative error {error:.3g} is over {limit:g}")
