"""Weights beyond a budget lie in a file: the same bits, less memory, and refusals that name both numbers."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pytest
import torch

from hundredfold.config import load as load_settings
from hundredfold.models import DEFAULT_MODEL
from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import LoadedModel, ModelLoadError
from hundredfold_worker.model.decoder import Decoder, DecoderLayer
from hundredfold_worker.model.offload import Stream, StreamedLayers, StreamedProgram
from hundredfold_worker.model.offload.layers import nbytes
from hundredfold_worker.model.offload.pages import PAGE
from hundredfold_worker.model.offload.ring import Ring, buffers, window
from hundredfold_worker.model.offload.spill import SpillFile
from hundredfold_worker.quality.layers import LayerLosses
from hundredfold_worker.settings import WorkerSettings
from support.model_rows import load, run_rows
from support.random_checkpoints import random_ids, random_model

LAYERS = 10
ROWS = [(random_ids(40), [17, 20, 1, 1, 1]), (random_ids(12, seed=3), [12])]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wide")
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": LAYERS}
    random_model("Llama", **shape).save_pretrained(directory)
    return directory


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HUNDREDFOLD_CACHE_DIR", str(tmp_path))
    return tmp_path


def layers_of(model: LoadedModel) -> tuple[DecoderLayer, ...]:
    decoder = getattr(model, "decoder", None)
    assert isinstance(decoder, Decoder)
    return decoder.layers


def stream_of(model: LoadedModel) -> Stream:
    layers = layers_of(model)
    assert isinstance(layers, StreamedLayers)
    return layers.stream


def streamed(model: LoadedModel) -> set[int]:
    """Layers that lie in a file."""
    layers = layers_of(model)
    return set(layers.stream.numbers) if isinstance(layers, StreamedLayers) else set()


def layer_bytes(model: LoadedModel) -> int:
    return nbytes(layers_of(model)[0])


@pytest.mark.parametrize(
    "options",
    [{}, {"kernels": ("torch",)}, {"quantization": "int8"}, {"quantization": "int8", "kernels": ("torch",)}],
    ids=str,
)
def test_the_same_bits_from_half_the_memory(checkpoint: Path, options: dict[str, str], cache: Path) -> None:
    whole = load(checkpoint, **options)
    truth = run_rows(whole, ROWS)
    size, total = layer_bytes(whole), whole.runtime.weight_bytes
    budget = total // 2
    model = load(checkpoint, weight_memory=budget, **options)
    assert 4 <= len(streamed(model)) < LAYERS
    # but for pages that a tensor shares with others
    assert model.runtime.weight_bytes <= budget + LAYERS * 8 * 2 * PAGE
    assert model.runtime.weight_bytes < total - 3 * size
    for _ in range(2):
        for rows, wanted in zip(run_rows(model, ROWS), truth, strict=True):
            assert torch.equal(rows, wanted)
    chosen = next(choice for choice in model.runtime.selections if choice.subject == "offload")
    assert f"{len(streamed(model))} of {LAYERS} layers" in chosen.reason
    assert list((cache / "weights").iterdir()) == []  # without a name: nothing is left behind


def test_captured_steps_read_layers_and_leave_them(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a step wants logits of a part of its rows, or of none: it stops inside the last layer."""
    whole = load(checkpoint)
    model = load(checkpoint, weight_memory=whole.runtime.weight_bytes // 2)
    assert LAYERS - 1 in streamed(model)
    runs: list[int] = []
    run = StreamedProgram.__call__

    def recorded(program: StreamedProgram, rows: int) -> None:
        runs.append(rows)
        run(program, rows)

    monkeypatch.setattr(StreamedProgram, "__call__", recorded)
    ids = random_ids(40)
    batch = AttentionBatch([40], [40], torch.arange(3).view(1, 3).int(), torch.arange(40), torch.arange(40))
    caches = [side.cache_planner.allocate(3) for side in (whole, model)]
    with torch.inference_mode():
        for wanted in ([], [7, 39], [], list(range(40))):
            truth, found = (
                side.forward(torch.tensor(ids), batch, own, torch.tensor(wanted, dtype=torch.int64)).clone()
                for side, own in zip((whole, model), caches, strict=True)
            )
            assert torch.equal(found, truth)
    assert runs == [40, 40, 2, 40, 40]  # what every row needs, and what only the two whose logits are wanted


def test_a_budget_that_holds_everything_streams_nothing(checkpoint: Path) -> None:
    model = load(checkpoint, weight_memory=1 << 30)
    assert streamed(model) == set()
    assert any(choice.subject == "offload" for choice in model.runtime.selections)


def test_a_budget_that_is_too_small_is_refused_with_both_numbers(checkpoint: Path) -> None:
    with pytest.raises(ModelLoadError, match="weight_memory is 1000 bytes, the least for this model is"):
        load(checkpoint, weight_memory=1000)


@pytest.mark.parametrize("small", ["0", "[4-6]", "[1-9]"])
def test_layers_of_other_sizes_are_counted_as_they_are(checkpoint: Path, cache: Path, small: str) -> None:
    options = {"quantization": "int8", "quantization_exclude": (f"model.layers.[!{small.strip('[]')}].*",)}
    whole = load(checkpoint, **options)
    sizes = list(map(nbytes, layers_of(whole)))
    truth, total = run_rows(whole, ROWS), whole.runtime.weight_bytes
    assert len(set(sizes)) == 2
    budget = total - 2 * max(sizes) if small == "[4-6]" else total - max(sizes) // 2
    model = load(checkpoint, weight_memory=budget, **options)
    moved = {number: sizes[number] for number in streamed(model)}
    held = total - sum(sizes)
    assert held + sum(sizes) - sum(moved.values()) + window(moved) <= budget
    for rows, wanted in zip(run_rows(model, ROWS), truth, strict=True):
        assert torch.equal(rows, wanted)
    assert streamed(load(checkpoint, weight_memory=total, **options)) == set()


def test_what_is_in_memory_at_once() -> None:
    assert window({}) == 0
    assert window({2: 5, 4: 7, 9: 1}) == 13  # each has a buffer
    assert window({0: 9, 2: 1, 4: 1, 6: 2, 8: 8}) == 18  # 0 and 6 share one, 2 and 8 another


def test_layers_are_compared_while_both_sides_stream(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = load(checkpoint).runtime.weight_bytes // 2
    sides = [load(checkpoint, weight_memory=half) for _ in range(2)]
    reads: dict[Ring, list[int]] = {}
    read = Ring.read

    def recorded(ring: Ring, number: int) -> None:
        reads.setdefault(ring, []).append(number)
        read(ring, number)

    monkeypatch.setattr(Ring, "read", recorded)
    losses = LayerLosses(*sides)
    losses.add(torch.arange(20))
    assert [loss.error for loss in losses.worst_first()] == [0.0] * (4 * LAYERS + 1)
    assert len(reads) == len(sides)
    for stream in map(stream_of, sides):
        stream.close()
    shared = [number for group in buffers(streamed(sides[0])) if len(group) > 1 for number in group]
    for seen in reads.values():
        assert sorted(seen) == sorted(2 * shared)  # once when they were looked at


def test_kernels_that_hide_their_weights_are_refused(checkpoint: Path) -> None:
    total = load(checkpoint).runtime.weight_bytes
    with pytest.raises(ModelLoadError, match="set kernels to cpu or torch"):
        load(checkpoint, weight_memory=total // 2, kernels=("onednn",))


def test_memory_is_given_back_and_the_content_stays(tmp_path: Path) -> None:
    tensor = torch.arange(8 << 20, dtype=torch.float32)  # 32 MiB
    copy = tensor.clone()
    file = SpillFile(tmp_path / "weights")
    address = tensor.data_ptr()
    before = psutil.Process().memory_info().rss
    regions = file.put([tensor, torch.ones(4)])
    file.flush()
    file.drop(regions)
    assert len(regions) == 1
    assert psutil.Process().memory_info().rss < before - (24 << 20)
    assert tensor.data_ptr() == address
    assert torch.equal(tensor, copy)
    tensor[1 << 20] = 7  # private: the file does not change
    file.drop(regions)
    assert torch.equal(tensor, copy)
    del tensor, file
    gc.collect()
    assert float(torch.zeros(8 << 20).sum()) == 0  # whoever gets these addresses next can use them


def test_sizes_are_written_as_people_do() -> None:
    def told(value: str) -> int | None:
        return load_settings(WorkerSettings, file=None, flags={"weight_memory": value}).weight_memory

    assert (told("2GiB"), told("300MB"), told("4096")) == (2 << 30, 300_000_000, 4096)
    with pytest.raises(Exception, match="no size"):
        told("some")


def test_the_default_model_in_half_of_its_memory_says_the_same() -> None:
    whole = load(DEFAULT_MODEL, dtype="auto")
    rows: list[tuple[list[int], list[int]]] = [(list(range(20, 52)), [30, 1, 1])]
    truth, total = run_rows(whole, rows)[0], whole.runtime.weight_bytes
    del whole
    model = load(DEFAULT_MODEL, dtype="auto", weight_memory=total // 2)
    assert model.runtime.weight_bytes < 0.55 * total
    assert len(streamed(model)) > 10
    assert torch.equal(run_rows(model, rows)[0], truth)
