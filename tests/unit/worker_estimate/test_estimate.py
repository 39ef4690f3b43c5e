"""``hundredfold estimate`` on configurations alone: known models' sizes, formats by hand, windows, advice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hundredfold_worker.estimate import command
from hundredfold_worker.sizes import parse, show

LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}
LLAMA3_8B = LLAMA_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
MIXTRAL = LLAMA_7B | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GPU = ("--device", "cuda", "--memory", "80GiB", "--bandwidth", "3.35TB/s", "--operations", "990T")

Write = Callable[[dict[str, Any]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(config: dict[str, Any]) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return str(path)

    return make


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def told(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code in (0, 1), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (LLAMA_7B, 6.738, 6.607),
        (LLAMA3_8B, 8.030, 7.505),
        (MIXTRAL, 46.70, 12.75),
        (QWEN3_30B, 30.53, 3.04),
        (DEEPSEEK_V3, 671.0, 36.7),
    ],
    ids=["llama-7b", "llama-3-8b", "mixtral", "qwen3-30b-a3b", "deepseek-v3"],
)
def test_known_models_have_their_known_sizes(
    write: Write, config: dict[str, Any], billions: float, active: float
) -> None:
    found = told(write(config), *GPU)
    assert found["num_parameters"] / 1e9 == pytest.approx(billions, rel=0.003)
    assert found["active_parameters"] / 1e9 == pytest.approx(active, rel=0.02)


def test_cache_of_grouped_heads_windows_and_compressed_vectors(write: Write) -> None:
    def token(config: dict[str, Any], *more: str) -> int:
        size: int = told(write(config), *GPU, *more)["memory"]["cache_bytes_per_token"]
        return size

    assert token(LLAMA_7B) == 2 * 32 * 32 * 128 * 2
    assert token(LLAMA3_8B) == token(LLAMA_7B) // 4
    assert token(LLAMA3_8B, "--kv-cache-dtype", "int8") == 32 * 8 * (2 * 128 + 2 * 4)
    assert token(LLAMA3_8B, "--kv-cache-dtype", "fp8_e5m2") == 32 * 8 * (2 * 128 + 2 * 4)
    assert token(LLAMA3_8B, "--kv-cache-dtype", "int4") == 32 * 8 * 2 * (64 + 4 * 4)
    assert token(DEEPSEEK_V3) == 61 * (512 + 64) * 2


def test_blocks_are_freed_only_where_every_layer_has_a_window(write: Write) -> None:
    mistral = LLAMA3_8B | {
        "model_type": "mistral",
        "sliding_window": 1024,
        "max_position_embeddings": 32768,
        "vocab_size": 32000,
    }
    options = ("--max-num-batched-tokens", "1024", "--device", "cuda", "--memory", "40GiB")
    windowed = told(write(mistral), *options)["fits"]
    whole = told(write(mistral | {"sliding_window": None}), *options)["fits"]
    assert windowed["tokens"] == whole["tokens"]
    assert windowed["sequences"] > 10 * whole["sequences"]
    gemma = mistral | {"model_type": "gemma2", "head_dim": 128}
    mixed = told(write(gemma), *options)
    assert mixed["windows"] == [1024, None] * 16
    assert mixed["fits"]["sequences"] == pytest.approx(whole["sequences"], abs=1)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
DOWN_8 = {"dynamic": {"+:.*down_proj": {"bits": 8, "group_size": 32}, "-:.*o_proj": {}}}
W4A16 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
LINEAR_7B = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
REST_7B = 2 * (2 * 32000 * 4096 + 65 * 4096)


@pytest.mark.parametrize(
    ("section", "bytes_of_linear"),
    [
        (GPTQ, LINEAR_7B * (4 + 20 / 128) / 8),
        (GPTQ | {"bits": 3}, LINEAR_7B * (3 + 19 / 128) / 8),
        (GPTQ | {"group_size": -1}, LINEAR_7B * 4 / 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, LINEAR_7B * (4 + 20 / 64) / 8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, LINEAR_7B),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            LINEAR_7B * 4.5 / 8,
        ),
        ({"quant_method": "fp8"}, LINEAR_7B),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "format": "pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": W4A16}},
            },
            LINEAR_7B * (4 + 16 / 128) / 8,
        ),
        (
            GPTQ | DOWN_8,
            32
            * (
                3 * 4096 * 4096 * (4 + 20 / 128) / 8
                + 2 * 4096 * 11008 * (4 + 20 / 128) / 8
                + 4096 * 11008 * (8 + 24 / 32) / 8
                + 4096 * 4096 * 2
            ),
        ),
    ],
    ids=["gptq", "gptq-3", "gptq-row", "awq", "bnb-int8", "nf4", "fp8", "w4a16", "dynamic"],
)
def test_quantized_checkpoints_by_hand(write: Write, section: dict[str, Any], bytes_of_linear: float) -> None:
    found = told(write(LLAMA_7B | {"quantization_config": section}), *GPU)
    assert found["stored_bytes"] == pytest.approx(bytes_of_linear + REST_7B, rel=0.003)
    assert found["stored_bytes_exact"] is False


def test_speed_is_bandwidth_at_one_and_arithmetic_at_many(write: Write) -> None:
    found = told(write(LLAMA3_8B), *GPU, "--context", "128", "--concurrency", "256")
    one, many = found["speeds"][0], found["speeds"][-1]
    assert (one["sequences"], one["bound"]) == (1, "weights")
    assert one["ceiling"] == pytest.approx(3.35e12 / (2 * 7.505e9), rel=0.02)
    assert many["sequences"] == 256
    assert many["ceiling"] > 100 * one["ceiling"]
    assert told(write(LLAMA3_8B), "--device", "cuda", "--memory", "80GiB")["speeds"] == []


def test_layers_are_placed_in_order_and_the_rest_stays_on_disk(write: Write) -> None:
    found = told(write(LLAMA_7B), *GPU, "--max-memory", "0=8GiB,1=6GiB,cpu=2GiB", "--max-model-len", "512")
    placed = found["placement"]
    assert [place["device"] for place in placed] == ["0", "1", "cpu", "disk"]
    layers = [(place["first"], place["last"]) for place in placed if place["first"] is not None]
    assert layers[0][0] == 0
    assert layers[-1][1] == 31
    assert all(after[0] == before[1] + 1 for before, after in pairwise(layers))
    assert sum(place["weights"] for place in placed) == found["memory"]["weight_bytes"]
    for place in placed[:-1]:
        assert place["weights"] + place["cache"] + place["working"] <= place["limit"]
    enough = told(write(LLAMA_7B), *GPU, "--max-memory", "0=24GiB", "--max-model-len", "512")["placement"]
    assert [(place["device"], place["last"]) for place in enough] == [("0", 31)]


def test_what_does_not_fit_gets_remedies_in_order_and_exit_code_1(write: Write) -> None:
    options = ("--device", "cpu", "--dtype", "auto", "--memory", "40GiB", "--concurrency", "32")
    done = run(write(LLAMA3_8B), *options, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["fits"]["enough"]) == (1, False)
    settings = [remedy["setting"].split()[0] for remedy in found["remedies"]]
    order = ["--kv-cache-dtype", "--max-model-len", "--max-num-seqs", "--quantization", "hundredfold"]
    assert settings == [*order, "--weight-memory", "--memory-utilization"]
    sizes = [remedy["frees"] for remedy in found["remedies"]]
    assert all(size > 0 for size in sizes)
    cache = found["remedies"][0]
    token = told(write(LLAMA3_8B), *options, "--kv-cache-dtype", "int8")["memory"]["cache_bytes_per_token"]
    assert cache["frees"] == 32 * 4096 * (found["memory"]["cache_bytes_per_token"] - token)
    length = next(remedy for remedy in found["remedies"] if remedy["setting"].startswith("--max-model-len"))
    again = told(write(LLAMA3_8B), *options, *length["setting"].split())
    assert again["fits"]["enough"] is length["enough"]
    assert run(write(LLAMA3_8B), *options).exit_code == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "wide"}, "'hidden_size' is 'wide'"),
        ({"num_hidden_layers": 10**9}, "the limit is 4096"),
        ({"num_key_value_heads": 64}, "more than the 32"),
        ({"torch_dtype": "complex"}, "no float type"),
        ({"quantization_config": {"quant_method": "own"}}, "quant_method 'own'"),
        ({"quantization_config": GPTQ | {"dynamic": {"+:(": {"bits": 8}}}}, "no regular expression"),
        ({"quantization_config": GPTQ | {"dynamic": {"+:(a+)+$": {"bits": 8}}}}, "repeats a group"),
    ],
)
def test_a_broken_configuration_is_one_line(write: Write, change: dict[str, Any], words: str) -> None:
    done = run(write(LLAMA_7B | change), *GPU)
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_bad_options_are_named(write: Write) -> None:
    path = write(LLAMA_7B)
    for options, words in (
        (("--memory", "much"), "no size"),
        (("--max-memory", "40GiB"), "no DEVICE=SIZE"),
        (("--max-memory", "0=1GiB,0=2GiB"), "twice"),
        (("--kv-cache-dtype", "int3"), "int3"),
        (("--max-model-len", "100000"), "made for 4096"),
        (("--quantization", "own"), "'own' is not known"),
    ):
        done = run(path, *GPU, *options)
        assert done.exit_code in (1, 2)
        assert words in done.output
    assert "no model is called" in run("nothing-of-the-kind").output


def test_the_tables_show_what_json_tells(write: Write) -> None:
    done = run(write(LLAMA3_8B), *GPU, "--max-memory", "0=40GiB,cpu=120GiB", "--concurrency", "4")
    for words in ("8.03 billion", "4 sequences", "Decoding", "Placement", "0-31", "If memory is short"):
        assert words in done.output, done.output


def test_sizes() -> None:
    assert (parse("40GiB"), parse("1.5 kb"), parse("7"), parse("3.35TB/s")) == (
        40 << 30,
        1500,
        7,
        3_350_000_000_000,
    )
    assert (show(512), show(3 << 20), show(-(5 << 29))) == ("512 B", "3 MiB", "-2.5 GiB")
    with pytest.raises(ValueError, match="no size"):
        parse("4 parsecs")


def test_no_torch_is_loaded(write: Write) -> None:
    script = (
        "import sys\n"
        "from hundredfold_worker.estimate import command\n"
        "from hundredfold_worker.estimate import as_json, estimate, report\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0
