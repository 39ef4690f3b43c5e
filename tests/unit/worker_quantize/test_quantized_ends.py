"""Output layer and embedding quantized where a rule is their name, untied or shared; served afterwards."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from hundredfold.models import resolve
from hundredfold.plugin.registry import Registry, all_registries
from hundredfold_worker.model import LoadedModel, LoadOptions, load_model
from hundredfold_worker.quantize import command
from hundredfold_worker.quantize.ends import EndsQuantizer
from hundredfold_worker.quantize.formats import known_readers
from hundredfold_worker.quantize.forward import Calibrator
from hundredfold_worker.quantize.recipe import Options, make_recipe, parse_rule
from hundredfold_worker.quantize.run import Plan, quantize
from hundredfold_worker.quantize.source import open_source
from support.llama_checkpoints import random_llama
from support.tiny_model import write_tokenizer
from support.worker_model import full_logits

IDS = [3, 9, 4, 55, 23, 8, 77, 31, 12, 60, 2, 19]
TEXT = "When many little birds sing about water, people speak of stone, bread and music. " * 12
TABLE, HEAD = "model.embed_tokens", "lm_head"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("untied"))


def written(directory: Path, **changes: Any) -> Path:
    model = random_llama(vocab_size=512, intermediate_size=128, initializer_range=0.05, **changes)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    (directory / "text.txt").write_text(TEXT)
    return directory


@cache
def plugins() -> dict[str, Registry]:
    return all_registries()


def made(model: Path, output: Path, method: str | None, *rules: str) -> dict[str, Any]:
    """Quantize; config.json of what came out."""
    options = Options(group_size=32) if method in ("gptq", "awq") else Options()
    otherwise = None if method is None else make_recipe(method, options)
    parsed = tuple(parse_rule(rule, Options()) for rule in rules)
    plan = Plan(str(model), output, otherwise, parsed, model / "text.txt", samples=4, window=48)
    quantize(plan, lambda what, done, total: None)
    config: dict[str, Any] = json.loads((output / "config.json").read_text())
    return config


def loaded(path: Path) -> LoadedModel:
    options = LoadOptions(dtype="fp32", activations="float", max_model_len=64)
    return load_model(resolve(str(path)), options, plugins())


def likeness(path: Path, dense: Path) -> float:
    made = loaded(path)
    assert not made.runtime.warnings
    a, b = full_logits(made, IDS), full_logits(loaded(dense), IDS)
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1).min())


@pytest.mark.parametrize(
    ("method", "rules", "kind", "still_tied", "least"),
    [
        ("gptq", ("lm_head=gptq:4:32",), "gptq", False, 0.9),
        ("gptq", ("lm_head=gptq:8:32",), "gptq", False, 0.9),
        ("awq", ("lm_head=awq:4:32",), "awq", False, 0.9),
        ("smoothquant", ("lm_head=smoothquant",), "compressed-tensors", False, 0.999),
        ("int8", ("lm_head=int8", f"{TABLE}=int8"), "compressed-tensors", False, 0.999),
        ("fp8", ("lm_head=fp8",), "compressed-tensors", False, 0.99),
        ("gptq", ("lm_head=int8",), "mixed", False, 0.9),
        ("gptq", (f"{TABLE}=gptq:4:32",), "mixed", True, 0.85),
        ("int8", (f"{TABLE}=int8",), "mixed", True, 0.999),
        (None, ("lm_head=gptq:8:32",), "gptq", False, 0.999),
    ],
)
def test_a_tied_pair_is_quantized_as_asked(
    tied: Path,
    tmp_path: Path,
    method: str | None,
    rules: tuple[str, ...],
    kind: str,
    still_tied: bool,
    least: float,
) -> None:
    config = made(tied, tmp_path / "out", method, *rules)
    assert config["quantization_config"]["quant_method"] == kind
    assert config["tie_word_embeddings"] is still_tied
    assert likeness(tmp_path / "out", tied) > least
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert still_tied is not any(name.startswith(HEAD) for name in tensors)
    assert (f"{TABLE}.weight" in tensors and tensors[f"{TABLE}.weight"].dtype is torch.float32) is not any(
        rule.startswith(TABLE) for rule in rules
    )


@pytest.mark.parametrize(
    ("method", "rules", "kind"),
    [
        ("awq", ("lm_head=awq:4:32",), "awq"),
        ("int8", ("lm_head=smoothquant", f"{TABLE}=int8"), "compressed-tensors"),
        ("gptq", ("lm_head=gptq:4:32", f"{TABLE}=gptq:8:32"), "mixed"),
    ],
)
def test_a_pair_of_its_own(
    untied: Path, tmp_path: Path, method: str, rules: tuple[str, ...], kind: str
) -> None:
    config = made(untied, tmp_path / "out", method, *rules)
    assert config["quantization_config"]["quant_method"] == kind
    assert config["tie_word_embeddings"] is False
    assert likeness(tmp_path / "out", untied) > 0.9


def test_what_config_json_says_of_the_output_layer(tied: Path, tmp_path: Path) -> None:
    section = made(tied, tmp_path / "a", "gptq", "lm_head=gptq:8:32")["quantization_config"]
    assert section["lm_head"] is True
    assert section["dynamic"] == {"+:^lm_head$": {"bits": 8, "group_size": 32, "sym": True}}
    section = made(tied, tmp_path / "b", "int8", "lm_head=int8", f"{TABLE}=int8")["quantization_config"]
    assert section["ignore"] == []
    assert [group["targets"] for group in section["config_groups"].values()] == [["Linear"], ["Embedding"]]
    section = made(tied, tmp_path / "c", "gptq", "*=int8")["quantization_config"]
    assert section["ignore"] == [HEAD]


def test_who_reads_it() -> None:
    four, eight = (make_recipe("gptq", Options(bits=bits)) for bits in (4, 8))
    layers = dict.fromkeys(("model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"), four)
    awq, int8 = make_recipe("awq", Options()), make_recipe("int8", Options())
    assert known_readers(layers) == "hundredfold, transformers and others"
    assert known_readers({HEAD: int8} | dict.fromkeys(layers, int8)) == known_readers(layers)
    for head, rest in ((four, four), (eight, four), (awq, awq)):
        assert "read no output layer" in known_readers({HEAD: head} | dict.fromkeys(layers, rest))
    for other in (eight, None):
        assert "every layer has it alike" in known_readers({**layers, "model.layers.0.mlp.up_proj": other})
    assert "alone" in known_readers({HEAD: int8, **layers})


def test_layers_of_other_widths_are_rules_of_gptq(tied: Path, tmp_path: Path) -> None:
    section = made(tied, tmp_path / "out", "gptq", "*.down_proj=gptq:8:32", "*.1.*.o_proj=none")
    assert section["quantization_config"]["dynamic"] == {
        r"-:^model\.layers\.1\.self_attn\.o_proj$": {},
        r"+:^model\.layers\.\d+\.mlp\.down_proj$": {"bits": 8, "group_size": 32, "sym": True},
    }
    assert likeness(tmp_path / "out", tied) > 0.9


@pytest.mark.parametrize(
    "rule", ["lm_head=gptq:4:32", "lm_head=awq:3:32", "lm_head=int8", f"{TABLE}=gptq:3:32"]
)
def test_parts_of_a_table_are_the_whole(tied: Path, rule: str) -> None:
    source = open_source(resolve(str(tied)), plugins())
    parsed = parse_rule(rule, Options())
    recipes = {parsed.pattern: parsed.recipe}
    torch.manual_seed(0)
    hidden = [torch.randn(60, 64), torch.randn(30, 64)]
    with torch.inference_mode():
        calibrator = Calibrator(source.description, source.names.norm_offset, 64, plugins())
        whole = EndsQuantizer(source, recipes, calibrator).quantize(hidden)
        parts = EndsQuantizer(source, recipes, calibrator, at_once=64 * 192).quantize(hidden)
    assert whole.tensors.keys() == parts.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, parts.tensors[name]), name
    [error], [same] = whole.errors, parts.errors
    assert 0 < error.error < 0.4
    assert same.error == pytest.approx(error.error)


def test_gptq_looks_at_what_the_output_layer_sees(tied: Path) -> None:
    """Its error over these inputs is less than that of a head that was rounded for others."""
    source = open_source(resolve(str(tied)), plugins())
    recipes = {HEAD: make_recipe("gptq", Options(bits=3, group_size=32))}
    torch.manual_seed(0)
    mixing = torch.randn(12, 64)
    seen = [torch.randn(200, 12) @ mixing]
    with torch.inference_mode():
        calibrator = Calibrator(source.description, source.names.norm_offset, 64, plugins())
        own, other = (
            EndsQuantizer(source, recipes, calibrator).quantize(hidden).errors[0].error
            for hidden in (seen, [torch.randn(200, 64)])
        )
    assert own < 0.7 * other


class Killed(BaseException):
    """Nothing catches it."""


def test_a_run_killed_at_the_output_layer_is_taken_up(tied: Path, tmp_path: Path) -> None:
    rules = (parse_rule("lm_head=gptq:4:32", Options()),)
    whole, broken = (
        Plan(str(tied), tmp_path / name, None, rules, tied / "text.txt", 4, 48)
        for name in ("whole", "broken")
    )
    quantize(whole, lambda what, done, total: None)

    def killing(what: str, done: int, total: int) -> None:
        if what == "output layer":
            raise Killed

    with pytest.raises(Killed):
        quantize(broken, killing)
    quantize(broken, lambda what, done, total: None)
    assert tensors_of(tmp_path / "broken") == tensors_of(tmp_path / "whole")


def tensors_of(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rule", f"{TABLE}=awq:4:32"), "an embedding is quantized by gptq, int8, fp8"),
        (("--rule", f"{TABLE}=smoothquant"), "an embedding is quantized by gptq, int8, fp8"),
        (("--rule", f"{TABLE}=gptq:4:32", "--act-order"), "without act-order"),
        (("--rule", "lm_head=gptq:4:48"), "64 columns are no multiple of the group size 48"),
        (("--rule", "lm_*=int8"), "matched by their names alone, 'lm_head' and 'model.embed_tokens'"),
        (("--rule", "lm_head=none"), "nothing would be quantized"),
    ],
)
def test_what_cannot_be_is_refused(tied: Path, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(command, [str(tied), *arguments, "-o", str(tmp_path / "out")])
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_norm_takes_the_scales_of_the_output_layer(tied: Path, tmp_path: Path) -> None:
    made(tied, tmp_path / "out", None, "lm_head=smoothquant")
    before = load_file(tied / "model.safetensors")["model.norm.weight"]
    after = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert not torch.allclose(before, after, rtol=0.05)
    assert float(likeness(tmp_path / "out", tied)) > 0.9995
