"""Elementwise plugins against float64: every operation, odd widths, strided views, bits in company."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hundredfold.plugin import (
    Activation,
    Elementwise,
    ElementwisePlugin,
    ElementwiseSpec,
    RotaryStyle,
    Rotation,
)
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require

_WIDTHS = (1, 3, 8, 16, 31, 64, 80, 96, 576, 1003)
_ROWS = 7
_EPS = 1e-5

_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float16: 1e-3}
"""Largest ‖y - reference‖ / ‖reference‖ by type: one rounding of the output."""


def check_elementwise(
    plugin: ElementwisePlugin,
    *,
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
) -> Report:
    """Compare each operation of ``plugin`` with float64, for each type it accepts.

    Inputs are slices of wider buffers, as a decoder passes them; some have columns that lie apart. A row of
    NaN must stay alone, and a row computed alone must have the bits that it has among others.

    Raises:
        NonConformance: What is wrong, and for which input.
    """
    check_plugin("hundredfold.elementwise", plugin)
    report = Report()
    for dtype in dtypes:
        case = str(dtype).removeprefix("torch.")
        spec = ElementwiseSpec(torch.device(device), dtype, frozenset(Activation))
        reasons = checked_reasons(plugin, case, plugin.refuses(spec))
        if reasons:
            report.refused[case] = reasons
            continue
        check = _Check(plugin.bind(spec), spec, f"{plugin.name}, {case}")
        check.norms()
        check.rotations()
        check.gates()
        check.strides()
        report.accepted.append(case)
    require(bool(report.accepted), f"{plugin.name} refuses everything on {device}: {report.refused}")
    return report


class _Check:
    def __init__(self, operations: Elementwise, spec: ElementwiseSpec, case: str) -> None:
        self._operations, self._spec, self._case = operations, spec, case
        self._random = torch.Generator().manual_seed(0)
        self._limit = _TOLERANCE[spec.dtype]

    def norms(self) -> None:
        for width in _WIDTHS:
            weight = self._draw(width).float() * 0.3 + 1
            for shape in ((_ROWS, width), (_ROWS, 3, width)):
                case = f"rms_norm {list(shape)}"
                x = self._strided(*shape)
                self._same(x, partial(self._operations.rms_norm, weight=weight, eps=_EPS), case)
                got = self._operations.rms_norm(x, weight, _EPS)
                self._close(got, _norm(x, weight), case)
                require(got.is_contiguous(), f"{self._case}, {case}: the result is not contiguous")
            tiny = self._strided(_ROWS, width) * 1e-4  # eps decides
            self._close(
                self._operations.rms_norm(tiny, weight, _EPS), _norm(tiny, weight), f"rms_norm, tiny {width}"
            )
            self._sum(width, weight)

    def _sum(self, width: int, weight: Tensor) -> None:
        case = f"add_rms_norm [{_ROWS}, {width}]"
        residual, x = self._strided(_ROWS, width), self._strided(_ROWS, width)
        wanted_sum, given = residual + x, x.clone()
        got = self._operations.add_rms_norm(residual, x, weight, _EPS)
        require(torch.equal(residual, wanted_sum), f"{self._case}, {case}: the residual is not the sum")
        require(torch.equal(x, given), f"{self._case}, {case}: what is added was changed")
        self._close(got, _norm(wanted_sum, weight), case)
        alone = self._operations.rms_norm(wanted_sum, weight, _EPS)
        require(torch.equal(got, alone), f"{self._case}, {case}: differs from the norm of the sum")

    def rotations(self) -> None:
        for head_dim, dim in ((2, 2), (16, 16), (24, 16), (64, 64), (80, 32), (90, 90), (128, 128)):
            angle = (torch.rand(_ROWS, dim // 2, generator=self._random) * 50).to(self._spec.device)
            angles = torch.stack((angle.cos(), angle.sin()), -1)
            for style in RotaryStyle:
                case = f"rotate {dim} of {head_dim} columns as {style.value}"
                x = self._strided(_ROWS, 5, head_dim)[:, 1:4]
                turned = x.clone()
                wanted = _turned(x, angles, style)
                self._operations.rotate(x, Rotation(dim, style, angles))
                self._close(x, wanted, case)
                require(
                    torch.equal(x[..., dim:], turned[..., dim:]),
                    f"{self._case}, {case}: columns changed that do not rotate",
                )
                last = turned[-1:].clone()
                self._operations.rotate(last, Rotation(dim, style, angles[-1:].contiguous()))
                require(
                    torch.equal(last, x[-1:]),
                    f"{self._case}, {case}: a row alone has other bits than among others",
                )

    def gates(self) -> None:
        for activation in Activation:
            for width in _WIDTHS:
                case = f"gated {activation.value} [{_ROWS}, {width}]"
                x = self._strided(_ROWS, 2 * width) * 4
                self._same(x, partial(self._operations.gated, activation=activation), case)
                self._close(self._operations.gated(x, activation), _gated(x, activation), case)
            extreme = torch.tensor([-1e4, -120.0, -88.0, -20.0, -0.0, 0.0, 20.0, 88.0, 1e4])
            pair = self._place(torch.cat((extreme, torch.ones_like(extreme)))[None])
            case = f"gated {activation.value}, large gates"
            self._close(self._operations.gated(pair, activation), _gated(pair, activation), case)

    def strides(self) -> None:
        """Columns that lie apart, in any number of dimensions."""
        width = 24
        weight = self._draw(width).float() * 0.3 + 1
        operations = self._operations
        for shape in ((width,), (_ROWS, width), (_ROWS, 3, width), (2, 3, 4, width)):
            x = self._apart(*shape)
            case = f"rms_norm {list(shape)} of columns that lie apart"
            self._close(operations.rms_norm(x, weight, _EPS), _norm(x, weight), case)
        for make_residual, make_x in ((self._apart, self._strided), (self._strided, self._apart)):
            residual, x = make_residual(_ROWS, width), make_x(_ROWS, width)
            total = residual + x
            case = "add_rms_norm of columns that lie apart"
            self._close(operations.add_rms_norm(residual, x, weight, _EPS), _norm(total, weight), case)
            require(torch.equal(residual, total), f"{self._case}, {case}: the residual is not the sum")
        angles = self._draw(_ROWS, width // 2, 2).float()
        for style in RotaryStyle:
            x = self._apart(_ROWS, 3, width)
            wanted = _turned(x, angles, style)
            operations.rotate(x, Rotation(width, style, angles))
            self._close(x, wanted, f"rotate columns that lie apart as {style.value}")
        for activation in Activation:
            x = self._apart(_ROWS, 2 * width)
            case = f"gated {activation.value} of columns that lie apart"
            self._close(operations.gated(x, activation), _gated(x, activation), case)

    def _same(self, x: Tensor, operation: Callable[[Tensor], Tensor], case: str) -> None:
        """Input untouched, every row's bits its own, NaN kept where it is."""
        given = x.clone()
        whole = operation(x)
        require(torch.equal(x, given), f"{self._case}, {case}: the input was changed")
        require(whole.dtype == x.dtype, f"{self._case}, {case}: type is {whole.dtype}, wanted is {x.dtype}")
        for row in (0, _ROWS - 1):
            alone = operation(x[row : row + 1].clone())
            require(
                torch.equal(alone[0], whole[row]),
                f"{self._case}, {case}: row {row} alone has other bits than among others",
            )
        sick = x.clone()
        sick[3] = math.nan
        beside = operation(sick)
        others = [row for row in range(_ROWS) if row != 3]
        require(
            torch.equal(beside[others], whole[others]), f"{self._case}, {case}: a NaN spread to other rows"
        )
        require(bool(beside[3].isnan().all()), f"{self._case}, {case}: a NaN vanished")

    def _close(self, got: Tensor, wanted: Tensor, case: str) -> None:
        require(got.shape == wanted.shape, f"{self._case}, {case}: shape is {tuple(got.shape)}")
        require(got.dtype == self._spec.dtype, f"{self._case}, {case}: type is {got.dtype}")
        error = float((got.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        require(
            error <= self._limit, f"{self._case}, {case}: relative error {error:.3g} is over {self._limit:g}"
        )

    def _strided(self, *shape: int) -> Tensor:
        """A slice of a wider buffer that begins in its middle."""
        return self._draw(shape[0], *shape[1:-1], 2 * shape[-1] + 3)[..., 3 : shape[-1] + 3]

    def _apart(self, *shape: int) -> Tensor:
        """Every second column of a wider buffer."""
        return self._draw(*shape[:-1], 2 * shape[-1])[..., 1::2]

    def _draw(self, *shape: int) -> Tensor:
        return self._place(torch.randn(shape, generator=self._random))

    def _place(self, x: Tensor) -> Tensor:
        return x.to(self._spec.device, self._spec.dtype)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    exact = x.double()
    return exact / (exact.square().mean(-1, keepdim=True) + _EPS).sqrt() * weight.double()


def _turned(x: Tensor, angles: Tensor, style: RotaryStyle) -> Tensor:
    wanted = x.double()
    dim = 2 * angles.shape[1]
    cosine, sine = angles[:, None].double().unbind(-1)
    if style is RotaryStyle.PAIRS:
        first, second = slice(0, dim, 2), slice(1, dim, 2)
    else:
        first, second = slice(0, dim // 2), slice(dim // 2, dim)
    left, right = wanted[..., first].clone(), wanted[..., second].clone()
    wanted[..., first] = left * cosine - right * sine
    wanted[..., second] = right * cosine + left * sine
    return wanted


def _gated(x: Tensor, activation: Activation) -> Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    match activation:
        case Activation.SILU:
            opened = gate * torch.sigmoid(gate)
        case Activation.GELU:
            opened = gate * 0.5 * torch.erfc(-gate / math.sqrt(2))
        case Activation.GELU_TANH:
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            opened = 0.5 * gate * (1 + torch.tanh(inner))
    return opened * up
