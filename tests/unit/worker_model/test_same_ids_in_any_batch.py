"""The same ids at batch 1, 7, 64 and 256: integer recipes, the default one among them; fp32; and bf16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from hundredfold_worker.model import LoadedModel, ModelLoadError
from support.llama_checkpoints import random_llama, write_gguf
from support.model_rows import load, run_rows

BATCHES = (1, 7, 64)
RECIPES = {
    "Q4_1, int8 inputs, int8 cache": {"dtype": "auto", "kv_cache_dtype": "int8"},
    "int8, int8 cache": {"dtype": "auto", "quantization": "int8", "kv_cache_dtype": "int8"},
    "fp32": {"dtype": "fp32"},
    "bf16": {"dtype": "bf16"},
    "bf16 in the mode that promises it": {"dtype": "bf16", "batch_invariant": True},
}


@pytest.fixture(scope="module", params=RECIPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = tmp_path_factory.mktemp("batches") / "model.gguf"
    small = {"max_position_embeddings": 64, "initializer_range": 0.1}
    write_gguf(random_llama(**small), path, lambda name: Kind.Q8_0 if "embd" in name else Kind.Q4_1)
    threads = torch.get_num_threads()
    yield load(path, **{**RECIPES[request.param], "num_threads": 2})
    torch.set_num_threads(threads)


def test_every_batch_size_gives_the_same(model: LoadedModel) -> None:
    chosen = {selection.subject: selection.chosen for selection in model.runtime.selections}
    assert chosen["activations"] == ("int8" if chosen["kv_cache"] == "int8" else "float"), chosen
    generator = torch.Generator().manual_seed(4)
    # 256 prompts of three tokens are more rows than one block of a step's calls
    rows = [(torch.randint(0, 96, (6,), generator=generator).tolist(), [3, 1, 2]) for _ in range(256)]
    whole = run_rows(model, rows)
    ids = torch.stack(whole).argmax(-1)
    assert len(ids.unique()) > 20  # else the ids tell nothing
    for size in BATCHES:
        for start in (0, 101, 256 - size):
            part = run_rows(model, rows[start : start + size])
            assert all(map(torch.equal, part, whole[start : start + size])), (size, start)
            assert torch.equal(torch.stack(part).argmax(-1), ids[start : start + size])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kernels": ("torch",)}, r"layer '.+' fits \(torch: torch's product adds in an order that depends"),
        ({"kernels": ("onednn",)}, r"layer '.+' fits \(onednn: does not promise a row the same bits"),
        ({"attention": "torch"}, r"no attention fits \(torch: torch's products add in an order that depends"),
    ],
)
def test_what_promises_nothing_is_refused(options: dict[str, object], told: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(random_llama(max_position_embeddings=64), path, lambda name: Kind.Q8_0)
    load(path, dtype="fp32", num_threads=1, **options)  # without the mode it is taken
    with pytest.raises(ModelLoadError, match=told):
        load(path, dtype="fp32", num_threads=1, batch_invariant=True, **options)
