"""What a checkpoint says about sampling and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hundredfold.models import gguf_metadata, resolve
from hundredfold_tokenizer.defaults import CheckpointDefaults, checkpoint_defaults
from support.tiny_gguf import bpe_keys, write_gguf
from support.tiny_text_model import byte_level_model


def defaults(tmp_path: Path, **files: Any) -> CheckpointDefaults:
    return checkpoint_defaults(resolve(str(byte_level_model(tmp_path / "m", **files))), None, frozenset({7}))


def test_every_end_counts(tmp_path: Path) -> None:
    """Item 88: generation_config eos = [2, 9], config eos = 2, tokenizer eos = 7: all three end an answer."""
    found = defaults(tmp_path, generation_config={"eos_token_id": [2, 9]}, config={"eos_token_id": 2})
    assert found.eos_ids == {2, 7, 9}


@pytest.mark.parametrize("eos", [None, "2", [None, "x", True], -1, {}])
def test_ends_that_are_no_ids(tmp_path: Path, eos: Any) -> None:
    assert defaults(
        tmp_path, generation_config={"eos_token_id": eos}, config={"eos_token_id": None}
    ).eos_ids == {7}


def test_sampling(tmp_path: Path) -> None:
    config = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "max_new_tokens": 100,
        "other": 1,
    }
    assert defaults(tmp_path, generation_config=config).sampling == {
        "temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_tokens": 100
    }  # fmt: skip


def test_sampling_switched_off_is_greedy(tmp_path: Path) -> None:
    config = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}
    assert defaults(tmp_path, generation_config=config).sampling == {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
    }


@pytest.mark.parametrize(
    "config",
    [{"temperature": -1}, {"temperature": "hot"}, {"top_k": 1.5}, {"top_p": 0}, {"top_k": True},
     {"min_p": None},
     {"max_new_tokens": 0}, {"top_p": 7}],
)  # fmt: skip
def test_values_of_no_use_are_left_out(tmp_path: Path, config: dict[str, Any]) -> None:
    assert defaults(tmp_path, generation_config=config).sampling == {}


def test_nested_config(tmp_path: Path) -> None:
    config = {"eos_token_id": None, "text_config": {"eos_token_id": [4, 5], "max_position_embeddings": 77}}
    found = defaults(tmp_path, config=config)
    assert found.eos_ids == {4, 5, 7}
    assert found.max_model_len == 77


def test_gguf(tmp_path: Path) -> None:
    other = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    path = write_gguf(tmp_path / "m.gguf", bpe_keys(), other=other)
    found = checkpoint_defaults(resolve(str(path)), gguf_metadata(path), frozenset({2}))
    assert found.sampling == {"temperature": 0.5, "top_k": 7}
    assert found.eos_ids == {2}
    assert found.max_model_len == 2048
    assert found.vocab_size == len(bpe_keys()["tokens"])
    assert found.architecture == "llama"
