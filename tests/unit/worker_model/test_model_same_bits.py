"""In fp32 on CPU a token's logits have the same bits, however it was stepped and whoever was beside it."""

from __future__ import annotations

import pytest
import torch

from hundredfold_worker.model import LoadedModel
from support.llama_checkpoints import random_llama
from support.model_rows import load, run_rows

SHAPES = {
    "grouped": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    "a key head each": {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 80},
    "one key head": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = tmp_path_factory.mktemp("same-bits")
    config = {"max_position_embeddings": 1024, "initializer_range": 0.1, **SHAPES[request.param]}
    random_llama(**config).save_pretrained(directory)
    return load(directory)


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_chunks_and_decode_equal_one_prefill(model: LoadedModel) -> None:
    sequence = ids(470, 1)
    whole = run_rows(model, [(sequence, [470])])[0]
    for chunks in ([7, 9, 454], [256, 214], [1] * 18 + [452], [458, *[1] * 12], [128, 2, 3, 5, 8, 9, 315]):
        assert torch.equal(run_rows(model, [(sequence, chunks)])[0], whole), chunks


def test_neighbours_change_nothing(model: LoadedModel) -> None:
    rows = [
        (ids(5, 2), [1] * 5),
        (ids(300, 3), [290, *[1] * 10]),
        (ids(33, 4), [16, 1, 16]),
        (ids(17, 5), [17]),
        (ids(140, 6), [3, 5, 120, 12]),
    ]
    alone = [run_rows(model, [row])[0] for row in rows]
    assert all(map(torch.equal, run_rows(model, rows), alone))
    assert all(map(torch.equal, run_rows(model, rows[::-1])[::-1], alone))


def test_many_rows_decode_as_one_does(model: LoadedModel) -> None:
    rows = [(ids(9 + 3 * seed, seed), [8 + 3 * seed, 1]) for seed in range(24)]
    together = run_rows(model, rows)
    for index in (0, 13, 23):
        assert torch.equal(run_rows(model, [rows[index]])[0], together[index])


def test_threads_change_nothing(model: LoadedModel) -> None:
    rows = [(ids(200, 7), [197, *[1] * 3]), (ids(20, 8), [20])]
    one = run_rows(model, rows)
    torch.set_num_threads(2)
    assert all(map(torch.equal, run_rows(model, rows), one))


def test_a_row_of_nan_stays_alone(model: LoadedModel) -> None:
    """A sequence whose own numbers are broken reaches neither its neighbours nor who gets its blocks next."""
    rows = [(ids(40, 9), [30, *[1] * 10]), (ids(40, 10), [30, *[1] * 10])]
    clean = run_rows(model, rows)
    weight = model.decoder.embedding.weight  # type: ignore[attr-defined]
    table = weight.scales if hasattr(weight, "scales") else weight.weight
    sick = [95] * 40
    kept = table[95].clone()
    table[95] = float("nan")
    try:
        healthy = [([token % 95 for token in row], chunks) for row, chunks in rows]
        without = run_rows(model, healthy)
        beside = run_rows(model, [healthy[0], (sick, [30, *[1] * 10]), healthy[1]])
    finally:
        table[95] = kept
    assert beside[1].isnan().all()
    assert torch.equal(beside[0], without[0])
    assert torch.equal(beside[2], without[1])
    assert all(map(torch.equal, run_rows(model, rows), clean))
