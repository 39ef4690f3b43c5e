"""Whole runs of ``hundredfold quantize`` on tiny models: served afterwards, killed and taken up, refused."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from gguf import GGMLQuantizationType
from torch import Tensor

from hundredfold.models import resolve, safetensors_header
from hundredfold.plugin.registry import Registry, all_registries
from hundredfold_worker.model import LoadedModel, LoadOptions, load_model
from hundredfold_worker.quantize import command
from hundredfold_worker.quantize.forward import Calibrator, Product, Stage
from hundredfold_worker.quantize.recipe import Options, make_recipe, parse_rule
from hundredfold_worker.quantize.run import Plan, quantize
from hundredfold_worker.quantize.smoothing import Smoother
from hundredfold_worker.quantize.source import Source, SourceLayer, open_source
from hundredfold_worker.quantize.statistics import InputStatistics, Wanted
from support.llama_checkpoints import random_llama, write_gguf
from support.random_checkpoints import random_model
from support.tiny_model import write_tokenizer
from support.worker_model import full_logits

IDS = [3, 9, 4, 55, 23, 8, 77, 31, 12, 60, 2, 19]
TEXT = "When many little birds sing about water, people speak of stone, bread and music. " * 12
WHOLE = ("int8", "smoothquant", "fp8")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small weights: what rounding changes is not blown up by layers that only a random model has."""
    directory = tmp_path_factory.mktemp("tiny")
    random_llama(vocab_size=512, intermediate_size=128, initializer_range=0.05).save_pretrained(directory)
    write_tokenizer(directory)
    (directory / "LICENSE.txt").write_text(TEXT)  # calibrates, and is taken over like a real one
    return directory


def plan(model: Path, output: Path, method: str | None, *rules: str) -> Plan:
    options = Options(group_size=None if method in WHOLE else 32)
    otherwise = None if method is None else make_recipe(method, options)
    parsed = tuple(parse_rule(rule, Options()) for rule in rules)
    return Plan(str(model), output, otherwise, parsed, model / "LICENSE.txt", samples=4, window=48)


@cache
def plugins() -> dict[str, Registry]:
    return all_registries()


def silent(what: str, done: int, total: int) -> None:
    pass


def loaded(path: Path) -> LoadedModel:
    options = LoadOptions(dtype="fp32", activations="float", max_model_len=64)
    return load_model(resolve(str(path)), options, plugins())


def likeness(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1).min())


@pytest.mark.parametrize(
    ("method", "rules", "format_name", "least"),
    [
        ("gptq", (), "gptq", 0.93),
        ("awq", (), "awq", 0.93),
        ("smoothquant", (), "compressed-tensors", 0.999),
        ("int8", (), "compressed-tensors", 0.999),
        ("fp8", (), "compressed-tensors", 0.99),
        (None, ("*.self_attn.*=gptq:4:32", "*.1.mlp.down_proj=none", "*.mlp.*=awq:3:32"), "mixed", 0.8),
        ("gptq", ("model.layers.0.*=none",), "gptq", 0.93),
        ("awq", ("*.v_proj=none",), "awq", 0.93),
        ("int8", ("*.down_proj=none",), "compressed-tensors", 0.999),
    ],
)
def test_what_is_made_is_served(
    tiny: Path, tmp_path: Path, method: str | None, rules: tuple[str, ...], format_name: str, least: float
) -> None:
    output = tmp_path / "out"
    outcome = quantize(plan(tiny, output, method, *rules), silent)
    made = loaded(output)
    [quantization] = [one for one in made.runtime.selections if one.subject == "quantization"]
    assert quantization.chosen == outcome.config["quant_method"] == format_name
    assert not made.runtime.warnings
    assert likeness(full_logits(made, IDS), full_logits(loaded(tiny), IDS)) > least
    assert not (output / ".quantize").exists()
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE.txt"):
        assert (output / name).read_bytes() == (tiny / name).read_bytes()


def test_nothing_quantized_in_a_layer_changes_nothing(tiny: Path, tmp_path: Path) -> None:
    """Layers that stay are written with the bits they had."""
    output = tmp_path / "out"
    quantize(plan(tiny, output, "gptq", "model.layers.1.*=none"), silent)
    from safetensors.torch import load_file

    before, after = load_file(tiny / "model.safetensors"), load_file(output / "model.safetensors")
    kept = [name for name in before if "layers.0." not in name or "norm" in name]
    assert len(kept) > 10
    for name in kept:
        assert torch.equal(before[name], after[name]), name


class Killed(BaseException):
    """Nothing catches it."""


@pytest.mark.parametrize(
    ("method", "last"), [("gptq", 3), ("gptq", 8), ("gptq", 13), ("awq", 11), ("int8", 4), ("int8", 6)]
)
def test_a_killed_run_is_taken_up_with_the_same_bytes(
    tiny: Path, tmp_path: Path, method: str, last: int
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    quantize(plan(tiny, whole, method), silent)
    calls = 0

    def killing(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise Killed

    with pytest.raises(Killed):
        quantize(plan(tiny, broken, method), killing)
    assert not (broken / "config.json").exists()
    quantize(plan(tiny, broken, method), silent)
    assert files_of(broken) == files_of(whole)


def test_a_layer_that_is_done_is_not_done_again(tiny: Path, tmp_path: Path) -> None:
    output, seen = tmp_path / "out", []

    def stop(what: str, done: int, total: int) -> None:
        if what == "layer 1: read":
            raise Killed

    with pytest.raises(Killed):
        quantize(plan(tiny, output, "gptq"), stop)
    unfinished = output / ".quantize" / "layer-00001.safetensors.unfinished"
    unfinished.write_bytes(b"half of a file")
    outcome = quantize(plan(tiny, output, "gptq"), lambda what, done, total: seen.append(what))
    assert outcome.resumed_at == 1
    assert not [what for what in seen if what.startswith("layer 0")]
    assert len(outcome.errors) == 14


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_one_layer_is_in_memory_at_a_time(tmp_path: Path) -> None:
    model = random_llama(vocab_size=512, hidden_size=128, intermediate_size=512, num_hidden_layers=8)
    source = tmp_path / "model"
    model.save_pretrained(source)
    write_tokenizer(source)
    (source / "LICENSE.txt").write_text(TEXT)
    del model
    layer = 4 * (128 * 128 * 3 + 3 * 128 * 512)  # float32
    whole, hidden = 8 * layer, 4 * 4 * 48 * 128
    gc.collect()
    before, most = held(), 0

    def watch(what: str, done: int, total: int) -> None:
        nonlocal most
        if what.endswith(Stage.DOWN.value):
            most = max(most, held() - before)

    quantize(plan(source, tmp_path / "out", "gptq"), watch)
    grams = 4 * (3 * 128**2 + 512**2)
    assert layer < most < 3 * layer + 5 * hidden + 2 * grams < whole


def held() -> int:
    """Bytes of every tensor in memory."""
    found: dict[int, int] = {}
    for one in gc.get_objects():
        if type(one) is Tensor:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def test_calibration_runs_the_model_itself(tiny: Path) -> None:
    """With nothing rounded, the layers give the logits that the worker gives."""
    source = opened(tiny)
    worker = loaded(tiny)
    with torch.inference_mode():
        hidden = run_plain(source, lambda layer: None)
        decoder = worker.decoder
        logits = decoder.head(decoder.final_norm(hidden))
    assert torch.allclose(logits, full_logits(worker, IDS), atol=1e-3)


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("Llama", "awq"),
        ("Qwen2", "smoothquant"),
        ("Qwen3", "awq"),
        ("Gemma3", "smoothquant"),
        ("Phi3", "awq"),
        ("Olmo2", "smoothquant"),
    ],
)
def test_moving_scales_changes_no_output(family: str, method: str, tmp_path: Path) -> None:
    """Every family's norms, joined layers, biases: the layer computes what it did before."""
    random_model(family).save_pretrained(tmp_path)
    source = opened(tmp_path)
    recipe = make_recipe(method, Options(group_size=None if method in WHOLE else 16))
    recipes = dict.fromkeys(source.linear_names(), recipe)
    smoother = Smoother(source.names.norm_offset, torch.float32)
    with torch.inference_mode():
        plain = run_plain(source, lambda layer: None)
        changed = run_plain(source, lambda layer: smoother.apply(layer, recipes, inputs_of(source, layer)))
    assert torch.allclose(plain, changed, rtol=2e-3, atol=2e-3)


def opened(directory: Path) -> Source:
    return open_source(resolve(str(directory)), plugins())


def run_plain(source: Source, change: Callable[[SourceLayer], None]) -> Tensor:
    calibrator = Calibrator(source.description, source.names.norm_offset, 64, plugins())
    hidden = [calibrator.embed(source.embedding(), IDS)]
    for index in range(source.description.num_layers):
        layer = source.layer(index)
        change(layer)
        products = {name: Product(matrix.weight, matrix.bias) for name, matrix in layer.matrices.items()}
        nothing = dict.fromkeys(Stage, Wanted.NOTHING)
        calibrator.run(layer, products, hidden, nothing, lambda stage, inputs: None)
    return hidden[0]


def inputs_of(source: Source, layer: SourceLayer) -> dict[Stage, InputStatistics | None]:
    calibrator = Calibrator(source.description, source.names.norm_offset, 64, plugins())
    torch.manual_seed(0)
    hidden = [torch.randn(40, source.description.hidden_size)]
    products = {name: Product(matrix.weight, matrix.bias) for name, matrix in layer.matrices.items()}
    found: dict[Stage, InputStatistics | None] = {}
    calibrator.run(layer, products, hidden, dict.fromkeys(Stage, Wanted.PRODUCTS), found.__setitem__)
    return found


def test_a_gguf_model_becomes_a_checkpoint_that_is_served(tmp_path: Path) -> None:
    """Rows of queries and keys are put in order, and the numbers are those of the file."""
    model = random_llama(tie_word_embeddings=True)
    path = tmp_path / "model.gguf"
    write_gguf(model, path, lambda name: GGMLQuantizationType.Q8_0)
    source = opened(path)
    assert source.config["architectures"] == ["LlamaForCausalLM"]
    worker = loaded(path)
    with torch.inference_mode():
        hidden = run_plain(source, lambda layer: None)
        logits = worker.decoder.head(worker.decoder.final_norm(hidden))
    # the embedding is written as bf16
    assert likeness(logits, full_logits(worker, IDS)) > 0.999


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--samples", "4", "--window", "48"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a --method, or a --rule"),
        (("--method", "awq", "--bits", "6"), "awq has 2, 3, 4 or 8 bits, not 6"),
        (("--method", "gptq", "--bits", "5"), "gptq has 2, 3, 4 or 8 bits, not 5"),
        (("--method", "int8", "--group-size", "64"), "no groups of 64"),
        (("--method", "fp8", "--asym"), "fp8 has no zero points"),
        (("--method", "awq", "--act-order"), "act-order is an option of gptq"),
        (("--method", "gptq", "--group-size", "12"), "group size 12 is not possible"),
        (("--rule", "no-equals"), "not of the form"),
        (("--rule", "*=gptq:four"), "bits and group are whole numbers"),
        (("--rule", "*=exl2:4"), "'exl2' is unknown; known are gptq, awq"),
        (("--rule", "head=int8"), "matches no linear layer"),
        (("--method", "gptq", "--group-size", "48"), "'model.layers.0.self_attn.q_proj' cannot be gptq:4:48"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_computed(
    tiny: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = run(str(tiny), *arguments, "-o", str(tmp_path / "out"))
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_directory_with_something_else_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    result = run(str(tiny), "--method", "int8", "-o", str(tmp_path))
    assert result.exit_code == 1
    assert "is not empty" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_another_run_in_the_directory_is_named(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    def stop(what: str, done: int, total: int) -> None:
        if done:
            raise Killed

    with pytest.raises(Killed):
        quantize(plan(tiny, output, "int8"), stop)
    result = run(str(tiny), "--method", "fp8", "-o", str(output))
    assert result.exit_code == 1
    assert "asked otherwise" in result.output


def test_two_runs_in_one_directory_do_not_mix(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / ".quantize"
    folder.mkdir(parents=True)
    lock = str(folder / "lock")
    holding = (
        f"import fcntl; f = open({lock!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        result = run(str(tiny), "--method", "int8", "-o", str(tmp_path / "out"))
        other.communicate(b"\n")
    assert result.exit_code == 1
    assert "another run is at work" in result.output


def test_a_model_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = random_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
    model.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    result = run(str(tmp_path / "model"), "--method", "int8", "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "'model.layers.1.mlp.up_proj' holds numbers that are not finite" in " ".join(result.output.split())


def test_the_report_names_sizes_and_layers(tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    result = run(str(tiny), "--method", "gptq", "--group-size", "32", "--calibration", str(text), "--json",
                 "-o", str(tmp_path / "out"))  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["calibration"]["text"] == str(text)
    assert report["quantization_config"]["bits"] == 4
    assert report["bytes"] == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert len(report["layers"]) == 14
    assert all(0 < layer["error"] < 0.2 for layer in report["layers"])
    names = safetensors_header(tmp_path / "out" / "model.safetensors").tensors
    assert "model.layers.0.self_attn.q_proj.g_idx" in names


def test_a_text_too_short_to_calibrate_on_is_refused(tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("a b")
    result = run(str(tiny), "--method", "gptq", "--calibration", str(text), "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "the least to calibrate on is 32" in result.output
