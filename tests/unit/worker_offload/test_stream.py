"""Layers that share buffers: each has its own bits when it is computed, and its own memory afterwards."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hundredfold_worker.model.offload import Stream
from hundredfold_worker.model.offload.ring import AHEAD, buffers
from hundredfold_worker.model.offload.spill import SpillFile


def tensors(count: int) -> list[list[Tensor]]:
    """Of each layer two, of some pages each and of different sizes, at no page's beginning."""
    sizes = [30_000, 41_000]
    return [
        [
            torch.full((size + 500 * layer,), 100 * layer + pair).to(torch.int64)
            for pair, size in enumerate(sizes)
        ]
        for layer in range(count)
    ]


def copies(layers: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    return [[tensor.clone() for tensor in layer] for layer in layers]


def same(layer: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, layer, wanted))


def started(directory: Path, layers: Sequence[Sequence[Tensor]]) -> tuple[SpillFile, Stream]:
    """Every second layer of a model streams: 1, 3, 5..."""
    file = SpillFile(directory)
    regions = {2 * number + 1: file.put(layer) for number, layer in reversed(list(enumerate(layers)))}
    file.flush()
    return file, Stream(file, regions)


@contextmanager
def using(stream: Stream, layer: int) -> Iterator[None]:
    stream.enter(layer)
    try:
        yield
    finally:
        stream.leave(layer)


def steps(stream: Stream, layers: Sequence[Sequence[Tensor]], wanted: Sequence[Sequence[Tensor]]) -> None:
    for _ in range(4):
        for number in range(2 * len(layers) + 1):
            with using(stream, number):
                assert number % 2 == 0 or same(layers[number // 2], wanted[number // 2])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("forgotten", [False, True], ids=["kept", "from the disk"])
def test_every_layer_has_its_own_bits_in_every_step(tmp_path: Path, count: int, forgotten: bool) -> None:
    layers = tensors(count)
    wanted, addresses = copies(layers), [tensor.data_ptr() for layer in layers for tensor in layer]
    file, stream = started(tmp_path, layers)
    if forgotten:
        file.forget()
    steps(stream, layers, wanted)
    assert [tensor.data_ptr() for layer in layers for tensor in layer] == addresses
    shared = count > AHEAD + 1
    assert (stream.nbytes > 0) is shared
    if shared:  # the same pages, so that most do not have their own bits
        assert sum(map(same, layers, wanted)) <= AHEAD + 1
    stream.close()


def test_neighbours_never_share_a_buffer() -> None:
    for count in range(2, 30):
        buffer_of = {number: at for at, shared in enumerate(buffers(range(count))) for number in shared}
        assert len(buffer_of) == count
        assert all(buffer_of[number] != buffer_of[(number + 1) % count] for number in range(count))


def test_a_step_that_ends_early_is_followed_by_a_right_one(tmp_path: Path) -> None:
    layers = tensors(7)
    wanted = copies(layers)
    _, stream = started(tmp_path, layers)
    for last in (1, 4, 9):
        for number in range(last):
            with using(stream, number):
                pass
        steps(stream, layers, wanted)
    stream.enter(9)
    stream.leave(5)  # of a step before, late
    with pytest.raises(RuntimeError, match="layer 9 is being computed: one step at a time"):
        stream.enter(5)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_after_the_stream_layers_are_by_themselves(tmp_path: Path, how: str) -> None:
    layers = tensors(7)
    wanted = copies(layers)
    file, stream = started(tmp_path, layers)
    with using(stream, 1):
        pass  # reads go on
    if how == "closed":
        stream.close()
        steps(stream, layers, wanted)  # nothing is left to be read
    del stream, file
    gc.collect()
    assert all(map(same, layers, wanted))
    layers[0][0].fill_(-1)
    assert all(map(same, layers[1:], wanted[1:]))
    assert same([layers[0][1]], [wanted[0][1]])
    layers.clear()
    again = [torch.full((40_000,), number) for number in range(14)]  # whoever gets the memory next
    assert [int(tensor.sum()) for tensor in again] == [40_000 * number for number in range(14)]


def test_a_file_that_cannot_be_read_is_an_error_until_it_can(tmp_path: Path) -> None:
    layers = tensors(5)
    wanted = copies(layers)
    file, stream = started(tmp_path, layers)
    content = os.pread(file.fileno(), file.nbytes, 0)
    os.ftruncate(file.fileno(), 0)
    with pytest.raises(OSError, match="the file of weights ends at"):
        steps(stream, layers, wanted)
    os.pwrite(file.fileno(), content, 0)
    for _ in range(AHEAD):  # those that were to be read meanwhile
        with suppress(OSError):
            steps(stream, layers, wanted)
    steps(stream, layers, wanted)
    stream.close()
    assert all(map(same, layers, wanted))


def test_buffers_that_are_refused_leave_layers_as_they_were(tmp_path: Path) -> None:
    layers = tensors(5)
    wanted = copies(layers)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = SpillFile(tmp_path)
    regions = {number: file.put(layer) for number, layer in enumerate(layers)}
    file.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Stream(file, regions)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert all(map(same, layers, wanted))
