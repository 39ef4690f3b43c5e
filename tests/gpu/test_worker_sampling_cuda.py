"""Sampling on CUDA: the same noise, the same draws and the same scores as on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hundredfold.plugin import DrawRows
from hundredfold_cpu.drawing import CpuDrawer
from hundredfold_cpu.library import best
from hundredfold_worker.sampling.draw import TorchDrawer
from hundredfold_worker.sampling.logprobs import score_tensor
from hundredfold_worker.sampling.noise import bits, bits_tensor, row_keys, spread

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ROWS, VOCAB = 64, 49_152


def host_drawer() -> CpuDrawer:
    return CpuDrawer(best(), spread(np.arange(VOCAB)))


def test_bits_are_equal() -> None:
    positions = np.arange(ROWS, dtype=np.uint64)
    keys = row_keys(positions * np.uint64(1 << 58), positions, positions)
    hashed = spread(np.arange(VOCAB))
    ours = bits(keys[:, :1], keys[:, 1:], hashed[None, :])
    wide = torch.from_numpy(hashed.astype(np.int64)).cuda().expand(ROWS, -1)
    theirs = bits_tensor(torch.from_numpy(keys.astype(np.int64)).cuda(), wide)
    assert (theirs.cpu().numpy() == ours).all()


@pytest.mark.parametrize("filters", ["none", "some"])
def test_draws_are_equal(filters: str) -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((ROWS, VOCAB)) * 3).astype(np.float32)
    some = filters == "some"
    n = np.arange(ROWS, dtype=np.uint64)
    tops = logits.argmax(axis=1)
    wanted = DrawRows(
        rows=np.arange(ROWS),
        limits=np.full(ROWS, VOCAB - 100 if some else VOCAB, dtype=np.int64),
        top_ids=tops,
        top_values=logits[np.arange(ROWS), tops],
        temperature=rng.choice([0.5, 1.0, 2.0], ROWS).astype(np.float32),
        top_k=rng.choice([VOCAB, 50], ROWS) if some else np.full(ROWS, VOCAB),
        top_p=rng.choice([1.0, 0.9], ROWS) if some else np.ones(ROWS),
        min_p=rng.choice([0.0, 0.05], ROWS) if some else np.zeros(ROWS),
        keys=row_keys(n, n * np.uint64(0), n),
    )
    if some:
        picked = logits[:, : VOCAB - 100]
        tops = picked.argmax(axis=1)
        wanted = DrawRows(
            **{
                name: getattr(wanted, name)
                for name in DrawRows.__dataclass_fields__
                if name not in ("top_ids", "top_values")
            },
            top_ids=tops,
            top_values=picked[np.arange(ROWS), tops],
        )
    host = host_drawer().draw(torch.from_numpy(logits.copy()), wanted)
    cuda = TorchDrawer().draw(torch.from_numpy(logits).cuda(), wanted)
    assert (host == cuda).all()


def test_likeliest_and_scores() -> None:
    logits = torch.from_numpy(
        np.random.default_rng(1).standard_normal((ROWS, VOCAB)).astype(np.float32).round(1)
    )
    rows = np.arange(ROWS)
    limits = np.full(ROWS, VOCAB, dtype=np.int64)
    ids, values = TorchDrawer().likeliest(logits.cuda(), rows, limits)
    host_ids, host_values = host_drawer().likeliest(logits, rows, limits)
    assert (ids == host_ids).all()
    assert (values == host_values).all()
    there = score_tensor(logits.cuda(), rows, rows * 7, VOCAB, 20)
    here = score_tensor(logits, rows, rows * 7, VOCAB, 20)
    assert (there.top_ids == here.top_ids).all()
    assert (there.ranks == here.ranks).all()
    np.testing.assert_allclose(there.logprobs, here.logprobs, atol=1e-4)
