"""``hundredfold quality``: its figures by hand, its sides, and whole runs over a tiny model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from hundredfold.config import ConfigError
from hundredfold.errors import StartError
from hundredfold_worker.quality import command
from hundredfold_worker.quality.beforehand import room_for_logits
from hundredfold_worker.quality.compare import Plan, compare
from hundredfold_worker.quality.measures import Measures
from hundredfold_worker.quality.sides import SideError, read_sides
from hundredfold_worker.quality.text import PAGES, cut, read_text
from support.llama_checkpoints import random_llama
from support.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--tokens", "150", "--window", "64", "--chunk", "24"])


def test_tokens_drawn_one_at_a_time(tiny: str) -> None:
    """By exact attention they are those of the same model; by a part of the keys they differ."""
    text = ("--window", "200", "--chunk", "64", "--decode", "12", "--batch", "3", "--json")
    part = (
        "attention=sparse,attention_options=keep=0.3,attention_options=least=64,attention_options=recent=16"
    )
    for other, exact in ((":attention=torch", True), (f":{part}", False)):
        result = CliRunner().invoke(
            command, [f"{tiny}:dtype=fp32,block_size=16", other + ",dtype=fp32,block_size=16", *text]
        )
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["positions"] == 36
        assert (found["cosine_least"] > 0.9999) == exact
        assert min(found["decode"]["tokens_per_second"]) > 0
    refused = CliRunner().invoke(command, [tiny, ":attention=torch", *text[:4], "--decode", "199"])
    assert "leave 198 at most" in refused.output


def test_what_cannot_be_compared_is_told_before_a_model_is_loaded(tiny: str, tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    loads: list[str] = []
    plan = Plan(read_sides(tiny, str(tmp_path)), None, 100, 64, 16, layers=False, decode=4, batch=2)
    with pytest.raises(StartError, match=r"vocabulary of 512, .* one of 96"):
        compare(plan, lambda phase, done, total: loads.append(phase))
    assert loads == []


def test_logits_that_memory_does_not_hold_are_refused() -> None:
    room_for_logits(decode=4, batch=2, vocab_size=512)
    with pytest.raises(StartError, match=r"--decode 1024 times --batch 256 keeps 15944646656000 bytes"):
        room_for_logits(decode=1024, batch=256, vocab_size=15_206_000)


def test_figures_by_hand() -> None:
    first = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1], [0.2, 0.5, 0.3]]).log()
    second = torch.tensor([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1], [0.2, 0.4, 0.4]]).log()
    measures = Measures()
    measures.add(first[:2], second[:2], torch.tensor([0, 0]))
    measures.add(first[2:], second[2:], torch.tensor([2]))
    figures = measures.figures()
    assert figures.positions == 3
    assert figures.perplexity[0] == pytest.approx((0.5 * 0.8 * 0.3) ** (-1 / 3), rel=1e-5)
    assert figures.perplexity[1] == pytest.approx((0.25 * 0.8 * 0.4) ** (-1 / 3), rel=1e-5)
    ratio = figures.perplexity[1] / figures.perplexity[0]
    assert figures.perplexity_increase == pytest.approx(ratio - 1, rel=1e-5)
    by_hand = [0.5 * math.log(2) - 0.25 * math.log(2), 0, 0.5 * math.log(5 / 4) + 0.3 * math.log(3 / 4)]
    assert figures.kl_mean == pytest.approx(sum(by_hand) / 3, rel=1e-4)
    assert figures.top1_agreement == pytest.approx(2 / 3)
    assert figures.top1_interval[0] < 2 / 3 < figures.top1_interval[1]
    assert figures.sure_positions == 3
    assert figures.cosine_least < figures.cosine_mean < 1


def test_logits_that_are_minus_infinity_count_for_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0, -math.inf]])
    measures = Measures()
    measures.add(logits, logits.clone(), torch.tensor([1]))
    assert measures.figures().kl_mean == 0


def test_sides() -> None:
    a, b = read_sides(
        "some/path:x.gguf:dtype=fp32",
        ":quantization=int8,quantization-exclude=lm_head,quantization_exclude=*.v_proj",
    )
    assert (a.settings.model, a.settings.dtype) == ("some/path:x.gguf", "fp32")
    assert (b.settings.model, b.settings.dtype) == ("some/path:x.gguf", "auto")
    assert b.settings.quantization_exclude == ("lm_head", "*.v_proj")
    assert read_sides("a", "b")[1].settings.model == "b"


@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        (":dtype=fp32", "b", SideError, "names no model"),
        ("dtype=fp32", "b", SideError, "has no model"),
        ("a:dtype=fp32,int8", "b", SideError, "'int8' is no key=value"),
        ("a:model=b", "b", SideError, "before the colon"),
        ("a:dtyp=fp32", "b", ConfigError, "dtype"),
        ("a:dtype=fp31", "b", ConfigError, "fp31"),
    ],
)
def test_sides_that_make_no_sense(first: str, second: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_sides(first, second)


def test_text_is_cut_in_windows_of_the_models_own_tokens(tiny: str, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("one two three " * 40, encoding="utf-8")
    text = cut(tiny, own, 100, 64)
    assert [len(window) for window in text.windows] == [64, 36]
    assert text.num_scored == 98
    name, pages = read_text(None)
    assert len(pages) > 40_000
    assert all(page in name for page in PAGES)


def test_a_model_against_itself_loses_nothing(tiny: str) -> None:
    done = run(f"{tiny}:dtype=fp32", ":dtype=fp32", "--json", "--layers", "--max-perplexity-increase", "0%")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["perplexity_increase"] == 0
    assert report["kl_mean"] == pytest.approx(0, abs=1e-9)
    assert report["top1_agreement"] == 1
    assert report["positions"] == report["text"]["scored_tokens"] == 147
    assert {loss["error"] for loss in report["layers"]} == {0}
    assert report["pass"] is True


def test_sides_may_compute_in_different_types(tiny: str) -> None:
    done = run(f"{tiny}:dtype=fp32", ":dtype=bf16", "--json", "--layers")
    assert done.exit_code == 0, done.output
    assert all(0 < loss["error"] < 0.05 for loss in json.loads(done.stdout)["layers"])


def test_a_loss_is_seen_and_fails_the_build(tiny: str) -> None:
    sides = (f"{tiny}:dtype=fp32,activations=float", ":dtype=fp32,quantization=int8")
    done = run(*sides, "--json", "--layers", "--max-perplexity-increase", "0.0001%")
    report = json.loads(done.stdout)
    assert report["kl_mean"] > 0
    assert report["sides"][1]["weight_bytes"] < report["sides"][0]["weight_bytes"]
    assert report["layers"][0]["error"] >= report["layers"][-1]["error"] > 0
    assert report["pass"] is (report["perplexity_increase"] <= 1e-6)
    assert done.exit_code == (0 if report["pass"] else 1)


def test_chunks_change_nothing(tiny: str) -> None:
    found = []
    for chunk in ("1", "17", "64"):
        done = CliRunner().invoke(
            command, [f"{tiny}:dtype=fp32", "", "--json", "--tokens", "60", "--chunk", chunk]
        )
        found.append(json.loads(done.stdout)["perplexity"][0])
    assert found[0] == pytest.approx(found[1], rel=1e-5) == pytest.approx(found[2], rel=1e-5)


def test_what_cannot_run_is_said_in_a_line(tiny: str) -> None:
    for second, words in ((":quantization=nothing", "not installed"), (f"{tiny}/none", "none")):
        done = run(f"{tiny}:dtype=fp32", second)
        assert done.exit_code == 1
        assert words in done.output
        assert "Traceback" not in done.output
    assert run(tiny, ":dtyp=fp32").exit_code == 2
    assert "no share" in run(tiny, "", "--max-perplexity-increase", "much").output


def test_the_table_names_both_sides_and_the_worst_layers(tiny: str) -> None:
    done = run(f"{tiny}:dtype=fp32", ":quantization=int8", "--layers", "--max-perplexity-increase", "500%")
    assert done.exit_code == 0, done.output
    for words in ("perplexity", "cache per token", "same best token", "Worst layers", "PASS"):
        assert words in done.output
