"""Kernels against the reference: every weight they accept, every batch size, neighbours left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hundredfold.plugin import (
    Activations,
    ChannelInt8Weight,
    GroupedIntWeight,
    InvariantKernel,
    KernelPlugin,
    Linear,
    LinearSpec,
    kernel_reasons,
)
from hundredfold.plugin.integer import multiply_int8
from hundredfold.plugin.testing.reference import reference_linear
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require
from hundredfold.plugin.testing.samples import Sample, samples

BATCHES = (1, 2, 3, 8, 17, 33)

COMPANIES = (1, 7, 64, 256)
"""Rows among which one has to keep its bits, where a kernel promises that."""

_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Largest ‖y - reference‖ / ‖reference‖ by activation type: a few roundings of the output."""

_QUANTIZED_INPUT = 2e-2
"""The same where the recipe may quantize the input to 8 bits per token."""

_INTEGERS = (GroupedIntWeight, ChannelInt8Weight)


def check_kernel(
    kernel: KernelPlugin,
    *,
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
) -> Report:
    """Compare ``kernel`` with the reference for each canonical weight and activation type that it accepts.

    Where it says that it multiplies int8 inputs, its results for integer weights are compared with the
    definition's, of which rounded floats would be far off.

    Where it says that a row's bits do not depend on the batch, they are compared at 1, 7, 64 and 256 rows.
    Also checked: bias, strided input, input left unchanged, one row's NaN kept out of the others, every batch
    size held to the same limit. Raises ``NonConformance``.
    """
    check_plugin("hundredfold.kernels", kernel)
    report = Report()
    where = torch.device(device)
    for dtype in dtypes:
        for sample in samples(where):
            for activations in getattr(kernel, "activations", (Activations.FLOAT,)):
                if activations is Activations.INT8 and not isinstance(sample.weight, _INTEGERS):
                    continue
                spec = LinearSpec("suite.layer", sample.weight, where, dtype, activations)
                _check_case(kernel, spec, sample, report)
                if isinstance(kernel, InvariantKernel):
                    _check_case(kernel, replace(spec, batch_invariant=True), sample, report)
    require(bool(report.accepted), f"{kernel.name} refuses every weight on {device}: {report.refused}")
    return report


def _check_case(kernel: KernelPlugin, spec: LinearSpec, sample: Sample, report: Report) -> None:
    case = f"{sample.name}, {str(spec.dtype).removeprefix('torch.')}"
    if spec.activations is Activations.INT8:
        case += ", int8 inputs"
    variable = case
    if spec.batch_invariant:
        case += ", in any batch"
    reasons = checked_reasons(kernel, case, kernel_reasons(kernel, spec))
    if reasons:
        report.refused[case] = reasons
        return
    if spec.batch_invariant:
        _check_company(kernel, spec, f"{kernel.name}, {case}")
    if variable not in report.accepted:
        _check_layer(kernel, spec, sample, f"{kernel.name}, {case}")
    report.accepted.append(case)


def _check_company(kernel: KernelPlugin, spec: LinearSpec, case: str) -> None:
    n, k = spec.shape
    random = torch.Generator().manual_seed(k + 1)
    x = torch.randn(COMPANIES[-1], k, generator=random).to(spec.device, spec.dtype)
    layer = kernel.prepare(spec, torch.randn(n, generator=random).to(spec.device, spec.dtype))
    whole = layer(x)
    for rows in COMPANIES[:-1]:
        for first in (0, len(x) - rows):
            part = slice(first, first + rows)
            require(
                torch.equal(layer(x[part]), whole[part]),
                f"{case}: rows have other bits in a batch of {rows} than among {len(x)}",
            )


def _reference(spec: LinearSpec, x: Tensor) -> Tensor:
    if spec.activations is Activations.INT8 and isinstance(spec.weight, _INTEGERS):
        return multiply_int8(x, spec.weight, None).double()
    return reference_linear(spec.weight, x)


def _check_layer(kernel: KernelPlugin, spec: LinearSpec, sample: Sample, case: str) -> None:
    n, k = spec.shape
    limit = _TOLERANCE[spec.dtype]
    if sample.quantizes_input and spec.activations is Activations.FLOAT:
        limit = max(limit, _QUANTIZED_INPUT)
    random = torch.Generator().manual_seed(k)
    bias = torch.randn(n, generator=random).to(spec.device, spec.dtype)
    plain = kernel.prepare(spec, None)
    with_bias = kernel.prepare(spec, bias)
    require(isinstance(plain.nbytes, int) and plain.nbytes > 0, f"{case}: nbytes is {plain.nbytes!r}")
    require(isinstance(plain.recipe, str) and plain.recipe != "", f"{case}: recipe is {plain.recipe!r}")
    x = torch.randn(max(BATCHES), k, generator=random).to(spec.device, spec.dtype)
    whole = _reference(spec, x)
    for rows in BATCHES:
        y = _run(plain, x[:rows], n, f"{case}, {rows} rows")
        # The same limit for a row wherever it stands: the recipe does not change with the batch.
        _close(y, whole[:rows], limit, f"{case}, {rows} rows")
    _close(_run(with_bias, x, n, f"{case}, bias"), whole + bias.double(), limit, f"{case}, bias")
    wide = torch.randn(5, 2 * k, generator=random).to(spec.device, spec.dtype)
    strided = wide[:, k:]
    _close(
        _run(plain, strided, n, f"{case}, strided input"),
        _reference(spec, strided),
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
