"""What each type becomes, told without reading it."""

from __future__ import annotations

from collections.abc import Mapping

from hundredfold.plugin import (
    Codebook4Weight,
    DenseWeight,
    GroupedIntWeight,
    TensorHeader,
    WeightForm,
    Zero,
)


def _groups(
    label: str, bits: int, group_size: int, half_scales: bool = False, zero: Zero | None = None
) -> WeightForm:
    return WeightForm(label, GroupedIntWeight, 0, bits, group_size, half_scales, zero)


def _indices(label: str) -> WeightForm:
    return WeightForm(label, Codebook4Weight, 0, 4, 32)


KEPT: Mapping[str, WeightForm] = {
    form.label: form
    for form in (
        _groups("Q4_0", 4, 32, half_scales=True),
        _groups("Q4_1", 4, 32, half_scales=True, zero=Zero.OFFSET),
        _groups("Q5_0", 5, 32, half_scales=True),
        _groups("Q5_1", 5, 32, half_scales=True, zero=Zero.OFFSET),
        _groups("Q8_0", 8, 32, half_scales=True),
        # scales of K types are products of two numbers, which need a float32
        _groups("Q2_K", 2, 16, zero=Zero.OFFSET),
        _groups("Q3_K", 3, 16),
        _groups("Q4_K", 4, 32, zero=Zero.OFFSET),
        _groups("Q5_K", 5, 32, zero=Zero.OFFSET),
        _groups("Q6_K", 6, 16),
        _indices("IQ4_NL"),
        _indices("IQ4_XS"),
        _indices("MXFP4"),
    )
}
"""Types that a canonical weight holds as they are, to the bit."""


def form_of(header: TensorHeader) -> WeightForm:
    """The form of a tensor that is no plain floats."""
    kept = KEPT.get(header.encoding)
    if kept is None:
        return WeightForm(header.encoding, DenseWeight, header.nbytes)
    return WeightForm(
        kept.label, kept.makes, header.nbytes, kept.bits, kept.group_size, kept.half_scales, kept.zero
    )
