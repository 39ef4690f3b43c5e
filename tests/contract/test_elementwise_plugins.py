"""Elementwise plugins against the suite, and the suite against wrong ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    Activation,
    Elementwise,
    ElementwiseSpec,
    Reasons,
    RotaryStyle,
    Rotation,
)
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import NonConformance, check_elementwise
from hundredfold_cpu.elementwise import CpuElementwise
from hundredfold_cpu.library import Variant, variants

INSTALLED = Registry("hundredfold.elementwise")
FP32 = ElementwiseSpec(torch.device("cpu"), torch.float32, frozenset(Activation))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", INSTALLED.names())
def test_installed(name: str) -> None:
    assert check_elementwise(INSTALLED.get(name)).accepted == ["float32", "bfloat16"]


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.isa)
def test_every_instruction_set(variant: Variant) -> None:
    check_elementwise(CpuElementwise(variant))


def test_every_instruction_set_gives_the_same_bits() -> None:
    x = torch.randn(5, 2 * 93, generator=torch.Generator().manual_seed(0)) * 5
    weight = torch.rand(186)
    rotation = Rotation(90, RotaryStyle.PAIRS, torch.rand(5, 45, 2))
    found = []
    for variant in variants():
        operations = CpuElementwise(variant).bind(FP32)
        turned = x.clone()
        operations.rotate(turned.view(5, 2, 93), rotation)
        gates = [operations.gated(x, activation) for activation in Activation]
        found.append(torch.cat((operations.rms_norm(x, weight, 1e-5), turned, *gates), dim=1))
    assert all(torch.equal(result, found[0]) for result in found)


@pytest.mark.parametrize("activation", Activation)
def test_every_gate_is_exact_to_some_units_in_the_last_place(activation: Activation) -> None:
    gate = torch.linspace(-6, 87, 100_001)
    pair = torch.cat((gate, torch.ones_like(gate)))[None]
    got = CpuElementwise().bind(FP32).gated(pair, activation)[0].double()
    exact = gate.double()
    match activation:
        case Activation.SILU:
            wanted = exact * torch.sigmoid(exact)
        case Activation.GELU:
            wanted = exact * 0.5 * torch.erfc(-exact / math.sqrt(2))
        case Activation.GELU_TANH:
            wanted = exact * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3))
    # where e^x of a large number is part of it, its rounding counts too
    limit = 1e-6 if activation is Activation.SILU else 6e-6
    assert float(((got - wanted).abs() / wanted.abs().clamp_min(1e-30)).max()) < limit


class Wrong:
    """The reference with one mistake."""

    name = "wrong"
    api_version = API_VERSION
    priority = 0

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.right: Elementwise

    def refuses(self, spec: ElementwiseSpec) -> Reasons:
        return []

    def bind(self, spec: ElementwiseSpec) -> Elementwise:
        self.right = INSTALLED.get("torch").bind(spec)
        return self

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if self.mistake == "norms in its own type":
            return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(x.dtype)
        if self.mistake == "forgets eps":
            eps = 0
        if self.mistake == "scales by the batch":
            x = x - x.mean(0) * 1e-3
        if self.mistake == "loses dimensions":
            x = x.reshape(-1, x.shape[-1]) if x.dim() > 3 else x
        if self.mistake == "takes columns for neighbours":
            x = torch.as_strided(x, x.shape, (*x.stride()[:-1], 1))
        return self.right.rms_norm(x, weight, eps)

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if self.mistake == "leaves the residual":
            residual = residual.clone()
        return self.right.add_rms_norm(residual, x, weight, eps)

    def rotate(self, x: Tensor, rotation: Rotation) -> None:
        angles = rotation.angles
        if self.mistake == "turns backwards":
            angles = torch.stack((angles[..., 0], -angles[..., 1]), -1)
        self.right.rotate(x, Rotation(rotation.dim, rotation.style, angles))
        if self.mistake == "rotates all columns":
            x[..., rotation.dim :] += 1

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if self.mistake == "takes one gelu for the other" and activation is Activation.GELU:
            activation = Activation.GELU_TANH
        if self.mistake == "swaps the halves":
            gate_up = torch.cat(gate_up.chunk(2, dim=-1)[::-1], dim=-1)
        if self.mistake == "takes columns of gates for neighbours":
            gate_up = torch.as_strided(gate_up, gate_up.shape, (gate_up.stride(0), 1))
        return self.right.gated(gate_up, activation)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("forgets eps", r"rms_norm .*relative error"),
        ("norms in its own type", r"bfloat16, .*rms_norm"),
        ("scales by the batch", "alone has other bits"),
        ("leaves the residual", "the residual is not the sum"),
        ("turns backwards", r"rotate .*relative error"),
        ("rotates all columns", r"rotate 16 of 24 columns"),
        ("takes one gelu for the other", r"gated gelu .*relative error"),
        ("loses dimensions", r"rms_norm \[2, 3, 4, 24\] .*shape is \(24, 24\)"),
        ("takes columns for neighbours", r"rms_norm \[24\] of columns that lie apart"),
        ("takes columns of gates for neighbours", r"gated silu of columns that lie apart: relative"),
        ("swaps the halves", r"gated silu .*relative error"),
    ],
)
def test_a_wrong_plugin_is_caught(mistake: str, said: str) -> None:
    with pytest.raises(NonConformance, match=said):
        check_elementwise(Wrong(mistake))
