"""The suites hold a plugin to the form that it states: every way of being wrong is caught."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from hundredfold.plugin import (
    ChannelInt8Weight,
    GroupedIntWeight,
    LayerOutline,
    LayerRequest,
    StoredTensor,
    WeightForm,
    Zero,
)
from hundredfold.plugin.testing import NonConformance
from hundredfold.plugin.testing.forms import check_stated


class Stating:
    """Says of every layer the same."""

    def __init__(self, form: WeightForm | None) -> None:
        self.told = form

    def form(self, layer: LayerOutline) -> WeightForm | None:
        return self.told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"makes": ChannelInt8Weight}, "stated is ChannelInt8Weight, made is GroupedIntWeight"),
        ({"bits": 3}, "stated are 3 bits, made are 4"),
        ({"group_size": 64}, "stated are groups of 64, made are 32"),
        ({"half_scales": False}, "half_scales is False, made is True"),
        ({"zero": None}, "zero is None, made is Zero.POINT"),
        ({"zero": Zero.OFFSET}, "zero is Zero.OFFSET, made is Zero.POINT"),
        ({"stored_bytes": 1400}, "stated are 1400 bytes in the checkpoint, its tensors have 1280"),
        (None, "stated are plain floats, made is GroupedIntWeight"),
    ],
)
def test_a_form_that_is_not_what_is_loaded_is_caught(change: dict[str, object] | None, said: str) -> None:
    zeros = torch.arange(64, dtype=torch.uint8).view(32, 2) % 16
    weight = GroupedIntWeight(
        torch.zeros(32, 64, dtype=torch.uint8),
        torch.ones(32, 2, dtype=torch.float16),
        zeros,
        4,
        32,
        Zero.POINT,
    )
    form = WeightForm("own", GroupedIntWeight, 1280, 4, 32, half_scales=True, zero=Zero.POINT)
    plugin = Stating(None if change is None else replace(form, **change))  # type: ignore[arg-type]
    stored = {
        f"up.{part}": StoredTensor(f"up.{part}", "U8", (size,), np.zeros(size, dtype=np.uint8))
        for part, size in (("codes", 1024), ("scales", 128), ("zeros", 128), ("other", 9999))
    }
    used = ["up.codes", "up.scales", "up.zeros", "down.codes"]
    layer = LayerRequest("up", (32, 64))
    if not said:
        check_stated(plugin, layer, weight, "case", stored, used)
        return
    with pytest.raises(NonConformance, match=re.escape(said)):
        check_stated(plugin, layer, weight, "case", stored, used)
