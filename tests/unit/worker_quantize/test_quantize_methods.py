"""The methods of ``hundredfold quantize`` by themselves: by hand, against plain rounding, as readers read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hundredfold.models import resolve
from hundredfold.plugin import LayerRequest
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.registry import all_registries
from hundredfold_worker.model.checkpoint import open_checkpoint
from hundredfold_worker.model.selection import AUTO, choose_quantization
from hundredfold_worker.quantize.awq import awq, awq_scales
from hundredfold_worker.quantize.channel import round_tokens_float8, round_tokens_int8
from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.formats import quantization_config
from hundredfold_worker.quantize.gptq import gptq
from hundredfold_worker.quantize.packing import AWQ_ORDER, pack_awq, pack_columns, pack_rows
from hundredfold_worker.quantize.pieces import join_pieces, write_piece
from hundredfold_worker.quantize.recipe import Method, Recipe
from hundredfold_worker.quantize.rounders import ROUNDERS
from hundredfold_worker.quantize.rounding import best_grid, full_grid
from hundredfold_worker.quantize.statistics import InputStatistics

LAYER = "model.layers.0.mlp.down_proj"
ROWS, COLUMNS = 32, 96


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def correlated_inputs(columns: int = COLUMNS, tokens: int = 400, seed: int = 0) -> Tensor:
    """Inputs whose columns go together, some of them large: what calibration is for."""
    torch.manual_seed(seed)
    mixing = torch.randn(columns // 4, columns)
    x = torch.randn(tokens, columns // 4) @ mixing + 0.3 * torch.randn(tokens, columns)
    x[:, ::17] *= 8
    return x


def seen(x: Tensor) -> InputStatistics:
    inputs = InputStatistics.of_width(x.shape[1])
    for part in x.split(150):
        inputs.add(part)
    return inputs


def weights(seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(ROWS, COLUMNS) * 0.1


def nearest(matrix: Tensor, recipe: Recipe) -> Tensor:
    """Plain rounding in groups."""
    size = matrix.shape[1] if recipe.group_size == -1 else recipe.group_size
    by_group = matrix.view(len(matrix), -1, size)
    return full_grid(by_group, recipe.bits, recipe.symmetric).rounded(by_group).reshape(matrix.shape)


def output_error(x: Tensor, matrix: Tensor, rounded: Tensor) -> float:
    return float(((x @ (rounded - matrix).T) ** 2).sum())


def test_statistics_give_the_error_of_outputs() -> None:
    x, matrix = correlated_inputs(), weights()
    inputs = seen(x)
    changed = matrix + 0.01 * torch.randn_like(matrix)
    assert inputs.count == len(x)
    assert inputs.error(changed - matrix) == pytest.approx(output_error(x, matrix, changed), rel=1e-3)
    assert torch.allclose(inputs.mean, x.abs().mean(0), rtol=1e-4)
    assert torch.equal(inputs.largest, x.abs().amax(0))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_gptq_is_better_than_plain_rounding(bits: int, symmetric: bool, act_order: bool) -> None:
    x, matrix = correlated_inputs(), weights()
    recipe = Recipe(Method.GPTQ, bits, 32, symmetric, act_order)
    codes = gptq(matrix, seen(x).gram, recipe)
    own = output_error(x, matrix, codes.matrix())
    assert own < 0.6 * output_error(x, matrix, nearest(matrix, recipe))
    assert int(codes.codes.max()) < 2**bits
    assert codes.scales.shape == (ROWS, 3)
    assert torch.equal(codes.scales, codes.scales.half().float())


def test_gptq_without_correlations_is_plain_rounding_of_the_best_grid() -> None:
    matrix, recipe = weights(), Recipe(Method.GPTQ, 4, 32)
    codes = gptq(matrix, torch.eye(COLUMNS), recipe)
    by_group = matrix.view(ROWS, -1, 32)
    best = best_grid(by_group, torch.ones(32), 4, True).rounded(by_group).view(ROWS, COLUMNS)
    assert torch.equal(codes.matrix(), best)


def test_act_order_puts_the_largest_inputs_into_the_first_group() -> None:
    x = torch.randn(300, COLUMNS)
    loud = [5, 40, 77, 90]
    x[:, loud] *= 20
    codes = gptq(weights(), seen(x).gram, Recipe(Method.GPTQ, 4, 32, act_order=True))
    assert [int(codes.group_of[column]) for column in loud] == [0, 0, 0, 0]
    assert codes.group_of.bincount().tolist() == [32, 32, 32]


def test_gptq_takes_columns_that_are_never_active() -> None:
    x = correlated_inputs()
    x[:, 3] = 0
    codes = gptq(weights(), seen(x).gram, Recipe(Method.GPTQ, 4, 32))
    assert float((codes.matrix() - weights())[:, 3].abs().max()) < 0.05


def test_gptq_says_when_inputs_are_not_finite() -> None:
    gram = torch.eye(COLUMNS)
    gram[2, 2] = torch.inf
    with pytest.raises(QuantizeError, match="not finite"):
        gptq(weights(), gram, Recipe(Method.GPTQ, 4, 32))


def test_whole_rows_and_groups_longer_than_a_block() -> None:
    torch.manual_seed(3)
    matrix, x = torch.randn(8, 320), correlated_inputs(320, 700)
    for size in (-1, 160):
        recipe = Recipe(Method.GPTQ, 4, size)
        codes = gptq(matrix, seen(x).gram, recipe)
        assert codes.scales.shape == (8, 1 if size == -1 else 2)
        plain = output_error(x, matrix, nearest(matrix, recipe))
        assert output_error(x, matrix, codes.matrix()) < 0.5 * plain


def test_zero_points_are_never_zero() -> None:
    """The first format stores them less one, and some readers have no room for the carry."""
    grid = full_grid(weights().abs().view(ROWS, -1, 32), 4, False)
    assert float(grid.zero.min()) >= 1


def test_a_group_of_zeros_stays_zero() -> None:
    grid = full_grid(torch.zeros(2, 1, 32), 4, False)
    assert torch.equal(grid.rounded(torch.zeros(2, 1, 32)), torch.zeros(2, 1, 32))


def test_awq_scales_make_rounding_better() -> None:
    x, matrix, recipe = correlated_inputs(), weights(), Recipe(Method.AWQ, 4, 32, symmetric=False)
    inputs = seen(x)
    scales = awq_scales([(matrix, recipe)], inputs, inputs.mean)
    scaled = nearest(matrix * scales, recipe) / scales
    assert float(scales.min()) > 0
    assert output_error(x, matrix, scaled) < 0.9 * output_error(x, matrix, nearest(matrix, recipe))


def test_awq_clips_where_it_pays() -> None:
    x, matrix, recipe = correlated_inputs(), weights(), Recipe(Method.AWQ, 3, 32, symmetric=False)
    gram = seen(x).gram
    clipped, plain = (awq(matrix, gram, recipe, clip=clip).matrix() for clip in (True, False))
    assert torch.equal(plain, nearest(matrix, recipe))
    assert output_error(x, matrix, clipped) < output_error(x, matrix, plain)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_streams_of_bits_by_hand(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 2**bits, (3, 64))
    whole = [sum(int(code) << (bits * at) for at, code in enumerate(row)) for row in codes]
    words = [[(number >> 32 * at) & 0xFFFFFFFF for at in range(2 * bits)] for number in whole]
    packed = pack_rows(torch.from_numpy(codes), bits)
    assert packed.dtype == torch.int32
    assert packed.numpy().view(np.uint32).tolist() == words
    assert torch.equal(pack_columns(torch.from_numpy(codes.T), bits), packed.T)


def test_awq_order_by_hand() -> None:
    """The first nibble is column 0, the second column 2, ..., the last column 7."""
    word = int(pack_awq(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0]]), 4)) & 0xFFFFFFFF
    assert [word >> 4 * at & 15 for at in range(8)] == [1, 3, 5, 7, 2, 4, 6, 0]
    assert sorted(AWQ_ORDER) == list(range(8))


def test_tokens_are_rounded_each_by_itself() -> None:
    x = torch.tensor([[1.0, -0.5, 0.25], [127.0, 1.2, -0.4], [0.0, 0.0, 0.0]])
    assert torch.equal(round_tokens_int8(x)[1:], torch.tensor([[127.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert torch.allclose(round_tokens_int8(x)[0], x[0], atol=0.5 / 127)
    assert torch.allclose(round_tokens_float8(x), x, rtol=1 / 16, atol=1e-3)


RECIPES = [
    *(
        Recipe(Method.GPTQ, bits, size, symmetric, act_order)
        for bits in (2, 3, 4, 8)
        for size in (-1, 32)
        for symmetric in (True, False)
        for act_order in (True, False)
        if size == 32 or not act_order
    ),
    *(Recipe(Method.AWQ, bits, 32, symmetric) for bits in (2, 3, 4, 8) for symmetric in (True, False)),
    Recipe(Method.INT8),
    Recipe(Method.SMOOTHQUANT),
    Recipe(Method.FP8),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_our_readers_read_what_was_meant(recipe: Recipe, tmp_path: Path) -> None:
    """What a method says it rounded to is what a plugin makes of its tensors, bit for bit."""
    [rounded] = ROUNDERS[recipe.method].round([(LAYER, weights())], recipe, seen(correlated_inputs()))
    write_piece(
        tmp_path / "model.safetensors",
        {f"{LAYER}.{suffix}": tensor for suffix, tensor in rounded.tensors.items()},
    )
    section = quantization_config({LAYER: recipe})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    assert torch.equal(read_back(tmp_path), rounded.matrix)


@pytest.mark.parametrize("recipe", [Recipe(Method.GPTQ, 4, 32), Recipe(Method.AWQ, 3, 32, False)], ids=str)
def test_our_readers_read_it_in_a_mixture(recipe: Recipe, tmp_path: Path) -> None:
    [rounded] = ROUNDERS[recipe.method].round([(LAYER, weights())], recipe, seen(correlated_inputs()))
    write_piece(
        tmp_path / "model.safetensors",
        {f"{LAYER}.{suffix}": tensor for suffix, tensor in rounded.tensors.items()},
    )
    section = quantization_config({LAYER: recipe, "model.layers.0.mlp.up_proj": Recipe(Method.FP8)})
    assert section["quant_method"] == "mixed"
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    assert torch.equal(read_back(tmp_path), rounded.matrix)


def read_back(directory: Path) -> Tensor:
    checkpoint = open_checkpoint(resolve(str(directory)))
    method, _ = choose_quantization(all_registries(), checkpoint.info, AUTO)
    weight = method.load(LayerRequest(LAYER, (ROWS, COLUMNS)), checkpoint.tensors)
    return fold_transform(dequantize(weight, torch.float32), weight.transform)


def test_a_layer_left_alone_is_named_in_every_format() -> None:
    other = "model.layers.0.mlp.up_proj"
    gptq_section = quantization_config({LAYER: Recipe(Method.GPTQ, 4, 32), other: None})
    assert gptq_section["dynamic"] == {r"-:^model\.layers\.0\.mlp\.up_proj$": {}}
    awq_section = quantization_config({LAYER: Recipe(Method.AWQ, 4, 32, False), other: None})
    assert awq_section["modules_to_not_convert"] == [other]
    int8_section = quantization_config({LAYER: Recipe(Method.INT8), other: None})
    assert int8_section["ignore"] == [other, "lm_head"]


def test_mixtures_name_layers_once_where_all_agree() -> None:
    recipes = {
        f"model.layers.{index}.{part}": recipe
        for index in range(3)
        for part, recipe in (("q_proj", Recipe(Method.GPTQ, 4, 32)), ("up_proj", Recipe(Method.FP8)))
    }
    recipes["model.layers.1.up_proj"] = None
    rules = quantization_config(recipes)["rules"]
    assert [rule["layers"] for rule in rules] == [
        "model.layers.*.q_proj",
        "model.layers.0.up_proj",
        "model.layers.1.up_proj",
        "model.layers.2.up_proj",
    ]
    assert [rule["config"] and rule["config"]["quant_method"] for rule in rules] == [
        "gptq",
        "compressed-tensors",
        None,
        "compressed-tensors",
    ]


def test_pieces_are_joined_to_shards_with_an_index(tmp_path: Path) -> None:
    tensors = {f"t{index}": torch.full((4, 8), float(index)) for index in range(5)}
    write_piece(tmp_path / "a.piece", {name: tensors[name] for name in ("t0", "t1")})
    write_piece(tmp_path / "b.piece", {name: tensors[name] for name in ("t2", "t3", "t4")})
    out = tmp_path / "out"
    out.mkdir()
    written = join_pieces([tmp_path / "a.piece", tmp_path / "b.piece"], out, shard_bytes=300)
    assert [path.name for path in written] == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    from safetensors import safe_open

    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 128
    for name, tensor in tensors.items():
        with safe_open(out / index["weight_map"][name], "pt") as file:
            assert torch.equal(file.get_tensor(name), tensor)
