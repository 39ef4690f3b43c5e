"""The embedding table: rows of any canonical weight, kept quantized where that is possible."""

from __future__ import annotations

import pytest
import torch

from hundredfold.plugin import GroupedIntWeight
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.testing.samples import samples
from hundredfold_worker.model.embedding import make_embedding

PLAIN = [sample for sample in samples(torch.device("cpu")) if sample.weight.transform is None]


@pytest.mark.parametrize("sample", PLAIN, ids=lambda sample: sample.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_those_of_the_whole_matrix(sample: object, dtype: torch.dtype) -> None:
    weight = sample.weight  # type: ignore[attr-defined]
    matrix = dequantize(weight, dtype)
    table = make_embedding(weight, dtype)
    last = len(matrix) - 1
    ids = torch.tensor([0, last, 3, 3, last // 2])
    assert len(table) == len(matrix)
    assert torch.equal(table(ids), matrix[ids])
    assert table(ids[:0]).shape == (0, matrix.shape[1])
    if isinstance(weight, GroupedIntWeight):
        assert table.weight is weight
