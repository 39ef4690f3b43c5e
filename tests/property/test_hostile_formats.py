"""Every format against lies about each key and tensor: a sound weight, or an error with its name."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from hundredfold.plugin import (
    CheckpointInfo,
    LayerOutline,
    LayerRequest,
    StatingForms,
    StoredTensor,
    TensorHeader,
)
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing.quantization import MemoryTensors, check_weight
from hundredfold_worker.model.formats import InstalledFormats
from support.hostile import NAME, Base, bases, lies_in_section, lies_in_tensors

BASES = bases()
REGISTRY = Registry("hundredfold.quantization")
MOST_SECONDS = 1.0
"""Of processor time."""
MOST_MESSAGE = 1500
"""Characters: a file can hold any amount of text."""
MOST_MEMORY = 200 << 20
"""Bytes more than before, over all lies about one checkpoint."""


@pytest.fixture(autouse=True)
def bounded_memory() -> object:
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


def attempt(
    base: Base, info: CheckpointInfo, tensors: Mapping[str, StoredTensor], layer: LayerRequest
) -> str:
    """What a plugin said against a layer, empty when it read it. Only ``ValueError`` counts as saying."""
    plugin = REGISTRY.get(base.plugin)
    info = replace(info, formats=InstalledFormats(REGISTRY))
    began = time.process_time()
    try:
        reasons = plugin.refuses(info)
        assert isinstance(reasons, list)
        if reasons:
            return "; ".join(reasons)
        method = plugin.bind(info)
        assert isinstance(method.covers(layer), bool)
        assert isinstance(method, StatingForms)
        for told in (headers(tensors), None):
            form_of(method, LayerOutline(layer.name, layer.shape, headers=told))
        if method.covers(layer):
            weight = method.load(layer, MemoryTensors(tensors))
            check_weight(weight, layer.shape)
    except ValueError as error:
        return str(error) or "an error without a text"
    finally:
        assert time.process_time() - began < MOST_SECONDS
    return ""


def headers(tensors: Mapping[str, StoredTensor]) -> dict[str, TensorHeader]:
    return {
        name: TensorHeader(stored.encoding, stored.shape, stored.raw.nbytes)
        for name, stored in tensors.items()
    }


def form_of(method: StatingForms, layer: LayerOutline) -> None:
    """What estimates ask: any lie has a form of sound sizes, or is a ``ValueError``."""
    try:
        form = method.form(layer)
    except ValueError:
        return
    assert form is None or (form.stored_bytes >= 0 and (form.group_size is None or form.group_size > 0))


@pytest.mark.parametrize("name", BASES)
def test_the_sound_one_is_read(name: str) -> None:
    base = BASES[name]
    assert attempt(base, base.info, base.tensors, base.layer) == ""


@pytest.mark.parametrize("name", [name for name in BASES if BASES[name].info.quantization_config])
def test_lies_in_the_section(name: str) -> None:
    base = BASES[name]
    for lie, info in lies_in_section(base):
        try:
            said = attempt(base, info, base.tensors, base.layer)
        except Exception as error:
            raise AssertionError(f"{name}, {lie}: {type(error).__name__}: {error}") from error
        assert len(said) < MOST_MESSAGE, f"{name}, {lie}: {said[:200]}"


@pytest.mark.parametrize("name", BASES)
def test_lies_in_the_tensors(name: str) -> None:
    base = BASES[name]
    refused = 0
    for lie, tensors in lies_in_tensors(base):
        try:
            said = attempt(base, base.info, tensors, base.layer)
        except Exception as error:
            raise AssertionError(f"{name}, {lie}: {type(error).__name__}: {error}") from error
        assert len(said) < MOST_MESSAGE, f"{name}, {lie}: {said[:200]}"
        if said:
            refused += 1
            assert base.layer.name in said, f"{name}, {lie}: {said}"
    assert refused > 10 * len(base.tensors)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("shape", [(1, 1), (1 << 22, 1 << 20), (0, 64), (17, 64), (16, 1 << 40)])
def test_a_configuration_that_expects_another_shape(name: str, shape: tuple[int, int]) -> None:
    base = BASES[name]
    said = attempt(base, base.info, base.tensors, replace(base.layer, shape=shape))
    assert base.layer.name in said


def test_a_layer_of_integers_alone_is_not_read_as_floats() -> None:
    base = BASES["gptq"]
    record = replace(base.tensors[f"{NAME}.qweight"], shape=(16, 64))
    assert f"'{NAME}" in attempt(base, base.info, {f"{NAME}.weight": record}, base.layer)
