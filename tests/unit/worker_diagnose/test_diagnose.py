"""``hundredfold diagnose`` on tiny models broken on purpose, each in one way: the right finding is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from hundredfold_worker.diagnose import command
from hundredfold_worker.diagnose.sweep import repeats
from support.tiny_model import make_tiny_model

Break = Callable[[Path], None]
PROMPT = "the quick brown fox jumps over a lazy dog while many little birds sing about water"
IN_FILES = ("tokenizer_config.json", "generation_config.json", "config.json", "tokenizer.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that likes its prompt: what it was asked to go on with is what its head was turned to."""
    return make_tiny_model(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "broken"
    shutil.copytree(whole, directory)
    return directory


def run(model: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(
        command, [f"{model}:dtype=fp32", "--prompt", PROMPT, "--tokens", "6", *arguments]
    )


def found(model: Path | str, *arguments: str) -> dict[str, str]:
    """Names of what was found, with their severity; the worst of a name."""
    done = run(model, "--json", *arguments)
    assert done.exit_code in (0, 1), done.output
    report = json.loads(done.stdout)
    assert report["wrong"] is (done.exit_code == 1)
    for finding in report["findings"]:
        if finding["severity"] != "fine":
            assert finding["cause"]
            assert finding["remedy"]
    return {finding["name"]: finding["severity"] for finding in reversed(report["findings"])}


def edit(file: str, **changes: Any) -> Break:
    def change(directory: Path) -> None:
        path = directory / file
        values = json.loads(path.read_text()) if path.exists() else {}
        values.update(changes)
        kept = {key: value for key, value in values.items() if value is not None}
        path.write_text(json.dumps(kept))

    return change


def config(**changes: Any) -> Break:
    return edit("config.json", **changes)


def tokenizer(**changes: Any) -> Break:
    return edit("tokenizer_config.json", **changes)


def both(*changes: Break) -> Break:
    def change(directory: Path) -> None:
        for one in changes:
            one(directory)

    return change


TURN = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NO_ENDS = both(
    tokenizer(eos_token=None), config(eos_token_id=None), edit("generation_config.json", eos_token_id=None)
)
OLD = {"rope_parameters": None}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("broken", "name", "severity"),
    [
        (tokenizer(chat_template="{{ bos_token }}{{ bos_token }}" + TURN + OPEN), "double-bos", "error"),
        (
            tokenizer(chat_template="{{ bos_token }}" + TURN + OPEN, add_bos_token=True),
            "double-bos",
            "warning",
        ),
        (tokenizer(add_bos_token=True), "chat-without-bos", "warning"),
        (NO_ENDS, "eos-missing", "error"),
        (edit("generation_config.json", eos_token_id=0), "eos-disagree", "warning"),
        (edit("generation_config.json", eos_token_id=[2, 9000]), "eos-beyond-vocabulary", "error"),
        (
            both(
                tokenizer(eos_token="<|endoftext|>"),
                config(eos_token_id=0),
                edit("generation_config.json", eos_token_id=0),
            ),
            "turn-end-not-eos",
            "error",
        ),
        (tokenizer(chat_template=None), "template-missing", "warning"),
        (tokenizer(chat_template="{% if %}"), "template-broken", "error"),
        (tokenizer(chat_template=TURN), "no-generation-prompt", "warning"),
        (
            tokenizer(chat_template="{% for m in messages %}{{ m['content'] }}\n{% endfor %}" + OPEN),
            "turn-never-ends",
            "warning",
        ),
        (config(vocab_size=300), "vocabulary-too-large", "error"),
        (edit("generation_config.json", temperature=1.9), "hot-defaults", "warning"),
        (edit("generation_config.json", repetition_penalty=1.8), "strong-penalty", "warning"),
        (lambda directory: (directory / "tokenizer.json").unlink(), "tokenizer-unusable", "error"),
        (config(**OLD, max_position_embeddings=32768), "rope-theta-missing", "warning"),
        (config(max_position_embeddings=None), "positions-unstated", "warning"),
        (config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}), "rope-kind-unknown", "error"),
        (
            config(rope_parameters={"rope_type": "linear", "factor": 0.25, "rope_theta": 1e4}),
            "rope-factor",
            "error",
        ),
        (
            config(rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}),
            "rope-original-missing",
            "warning",
        ),
        (
            config(rope_parameters={**YARN, "rope_theta": 1e4}, max_position_embeddings=8192),
            "rope-reach",
            "warning",
        ),
        (
            config(
                rope_parameters={**YARN, "rope_theta": 1e4},
                rope_scaling={"rope_type": "yarn", "factor": 8.0},
            ),
            "rope-disagree",
            "error",
        ),
        (
            config(
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 512,
                }
            ),
            "longrope-long",
            "warning",
        ),
    ],
)
def test_what_is_wrong_in_the_files_is_named(copy: Path, broken: Break, name: str, severity: str) -> None:
    broken(copy)
    assert found(copy, "--files-only").get(name) == severity


def test_nothing_is_wrong_with_a_whole_model(whole: Path) -> None:
    assert set(found(whole, "--files-only").values()) == {"fine"}


def test_positions_beyond_the_model(whole: Path) -> None:
    done = CliRunner().invoke(command, [f"{whole}:max_model_len=4096", "--json", "--files-only"])
    names = {finding["name"] for finding in json.loads(done.stdout)["findings"]}
    assert "position-overflow" in names
    assert done.exit_code == 1


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Break:
    def rewrite(directory: Path) -> None:
        path = directory / "model.safetensors"
        stored = load_file(path)
        change(stored)
        save_file(stored, path, metadata={"format": "pt"})

    return rewrite


def scaled(name: str, factor: float) -> Break:
    def change(stored: dict[str, torch.Tensor]) -> None:
        stored[name] *= factor

    return tensors(change)


LAYER = "model.layers.1"


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (scaled(f"{LAYER}.self_attn.q_proj.weight", 0.0), "attention-uniform"),
        (scaled(f"{LAYER}.self_attn.k_proj.weight", 1e5), "attention-collapsed"),
        (scaled("model.layers.0.mlp.down_proj.weight", float("nan")), "attention-non-finite"),
        (scaled(f"{LAYER}.mlp.down_proj.weight", float("nan")), "logits-non-finite"),
        (lambda directory: (directory / "model.safetensors").write_bytes(b"cut"), "does-not-load"),
    ],
)
def test_what_is_wrong_in_the_weights_is_named(copy: Path, broken: Break, name: str) -> None:
    broken(copy)
    assert found(copy).get(name) == "error"


@pytest.mark.parametrize(
    ("broken", "name", "severity"),
    [
        (lambda directory: None, "layers", "fine"),
        (scaled(f"{LAYER}.mlp.up_proj.weight", -1.0), "layer-broken", "error"),
        (scaled(f"{LAYER}.self_attn.o_proj.weight", 1.2), "layer-lossy", "warning"),
        (scaled(f"{LAYER}.self_attn.o_proj.weight", float("nan")), "layer-non-finite", "error"),
    ],
)
def test_layers_that_differ_from_the_dense_model_are_named(
    whole: Path, copy: Path, broken: Break, name: str, severity: str
) -> None:
    broken(copy)
    done = run(copy, "--json", "--against", f"{whole}:dtype=fp32")
    report = json.loads(done.stdout)
    named = {finding["name"]: finding for finding in report["findings"]}
    assert named[name]["severity"] == severity
    if severity != "fine":
        assert f"{LAYER}." in named[name]["said"]


def test_the_report_shows_attention_temperatures_and_verdict(whole: Path) -> None:
    done = run(whole, "--against", f"{whole}:quantization=int8")
    for words in ("first token", "Temperatures", "Error of each product", "fine"):
        assert words in done.output, done.output
    assert "Traceback" not in run("nothing-there").output


def test_an_end_that_repeats_itself() -> None:
    assert repeats([1, 2, 5, 5, 5, 5, 5, 5])
    assert repeats([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert not repeats([1, 2, 3, 1, 2, 3])
    assert not repeats(list(range(20)))
    assert not repeats([])
