"""A stranger's package: installed into a fresh environment, proves itself there, and serves its format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from hundredfold import Client
from support.plugin_env import PluginEnvironment
from support.repo import ROOT
from support.stack import Stack
from support.tiny_model import make_tiny_model

EXAMPLE = ROOT / "plugins" / "example"
PROMPTS = ["the quick brown fox", "when people speak of stone", "water and light in every morning", "a"]
NUM_TOKENS = 32


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> PluginEnvironment:
    """A fresh environment with the example installed from its source."""
    made = PluginEnvironment.make(tmp_path_factory.mktemp("stranger") / "venv")
    made.install(EXAMPLE)
    return made


@pytest.fixture(scope="module")
def checkpoint(environment: PluginEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY in the example's format, written by its own tool."""
    directory = tmp_path_factory.mktemp("nibble")
    dense = make_tiny_model(directory / "dense")
    done = environment.run("-m", "nibble.write", dense, directory / "quantized")
    assert done.returncode == 0, done.stderr
    return directory / "quantized"


def dequantized(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The checkpoint's weights by the words of the format's description, without the plugin's code."""
    stored = load_file(checkpoint / "model.safetensors")
    weights = {}
    for name, values in stored.items():
        layer, _, part = name.rpartition(".")
        if part == "nibbles":
            codes = np.empty((values.shape[0], 2 * values.shape[1]), dtype=np.float32)
            codes[:, 0::2], codes[:, 1::2] = values & 15, values >> 4
            scales = stored[f"{layer}.scales"].astype(np.float32).repeat(32, axis=1)
            weights[f"{layer}.weight"] = torch.from_numpy((codes - 8) * scales)
        elif part != "scales":
            weights[name] = torch.from_numpy(values)
    return weights


def greedy(checkpoint: Path, prompt_ids: list[int]) -> list[int]:
    """What transformers answers with the dequantized weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = json.loads((checkpoint / "config.json").read_text())
    del config["quantization_config"]
    # The model has more ids than the tokenizer has texts; those without a text are never drawn.
    num_texts = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab_size()
    model: Any = LlamaForCausalLM(LlamaConfig(**config)).to(torch.float32).eval()
    model.load_state_dict(dequantized(checkpoint), strict=True)
    made = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        suppress_tokens=list(range(num_texts, config["vocab_size"])),
    )
    return [int(token) for token in made[0, len(prompt_ids) :]]


def test_its_own_tests_pass_there(environment: PluginEnvironment, tmp_path: Path) -> None:
    shutil.copytree(
        EXAMPLE / "tests", tmp_path / "tests"
    )  # away from its source: the installed one is tested
    done = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_it_is_listed_with_its_distribution(environment: PluginEnvironment) -> None:
    listed = environment.hundredfold("plugins", "--json")
    assert listed.returncode == 0, listed.stderr
    records = json.loads(listed.stdout)
    ours = next(record for record in records if record["name"] == "nibble")
    assert ours == {
        "group": "hundredfold.quantization",
        "name": "nibble",
        "distribution": "hundredfold-nibble 0.3.0",
        "state": "loaded",
        "api_version": "1",
        "description": "Checkpoints written by `python -m nibble.write`.",
        "error": "",
        "unavailable": "",
    }


def test_it_serves(environment: PluginEnvironment, checkpoint: Path, tmp_path: Path) -> None:
    """Through three processes, greedy, token by token what the dequantized weights give elsewhere."""
    stack = Stack(str(checkpoint), tmp_path, {"worker": {"dtype": "fp32"}}, python=environment.python)
    stack.start()
    try:
        stack.wait_ready()
        with Client(stack.address) as client:
            for prompt in PROMPTS:
                prompt_ids = client.encode(prompt)
                answer = client.generate(
                    token_ids=prompt_ids, max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True
                ).result()
                assert list(answer.token_ids) == greedy(checkpoint, prompt_ids), prompt
        info = environment.hundredfold("info", "--address", stack.address)
        assert "nibble" in info.stdout, info.stdout + info.stderr
    finally:
        codes = stack.stop()
    assert set(codes.values()) == {0}, stack.log("worker")


def test_without_it_the_checkpoint_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    stack = Stack(str(checkpoint), tmp_path)
    stack.start("worker")
    try:
        assert stack.processes["worker"].wait(timeout=60) == 1
    finally:
        stack.stop()
    assert "the checkpoint is quantized with nibble" in stack.log("worker")
