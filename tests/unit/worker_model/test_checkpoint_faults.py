"""Checkpoints that are wrong: each fault has its own message with the names in it, or a warning."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from hundredfold_worker.model import ModelLoadError
from support.llama_checkpoints import random_llama, reference_logits, write_gguf
from support.model_rows import load, one_prefill

IDS = list(range(20))
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound")
    random_llama().save_pretrained(directory)
    return directory


@pytest.fixture
def directory(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def change_tensors(directory: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors"
    )


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def refusal(directory: Path, **options: Any) -> str:
    began = time.process_time()  # others may want the machine meanwhile
    with pytest.raises(ModelLoadError) as caught:
        load(directory, **options)
    assert time.process_time() - began < 2
    return str(caught.value)


def test_a_missing_tensor_is_fatal(directory: Path) -> None:
    change_tensors(directory, lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.weight"))
    said = refusal(directory)
    assert "tensor 'model.layers.1.mlp.down_proj.weight'" in said
    assert "missing" in said
    assert "renamed" not in said


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_a_renamed_tensor_is_fatal_and_recognised(directory: Path, name: str) -> None:
    change_tensors(directory, lambda tensors: tensors.update({"stranger": tensors.pop(name)}))
    said = refusal(directory)
    assert f"tensor '{name}'" in said
    assert "'stranger', which nothing uses: was it renamed?" in said


def test_an_extra_tensor_is_a_warning(directory: Path) -> None:
    change_tensors(directory, lambda tensors: tensors.update({"stranger": torch.zeros(3)}))
    (warning,) = load(directory).runtime.warnings
    assert "1 tensors are not used: 'stranger'" in warning


def test_old_rotary_buffers_are_no_extra(directory: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(directory, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert load(directory).runtime.warnings == ()


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (64, 32), r"shape .*64.*32.*64.*64"),
        ("model.layers.0.input_layernorm.weight", (65,), "shape 65, expected is 64"),
        ("model.embed_tokens.weight", (95, 64), r"95.*96"),
    ],
)
def test_a_wrong_shape_is_fatal(directory: Path, name: str, shape: tuple[int, ...], said: str) -> None:
    import re

    change_tensors(directory, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    message = refusal(directory)
    assert name in message
    assert re.search(said, message)


def test_an_integer_weight_is_refused(directory: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(directory, lambda tensors: tensors.update({name: torch.zeros(96, 64, dtype=torch.int32)}))
    assert f"'{name}' is I32, expected is F64 or F32 or F16 or BF16" in refusal(directory)


class TestTiedHead:
    """Tied or not, with and without a tensor for the head."""

    def test_tied_without_a_tensor(self, tmp_path: Path) -> None:
        reference = random_llama(tie_word_embeddings=True)
        reference.save_pretrained(tmp_path)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
        model = load(tmp_path)
        error = float((one_prefill(model, IDS) - reference_logits(reference, IDS)).abs().max())
        assert error <= 1e-4
        assert model.runtime.num_parameters == reference.num_parameters()

    def test_untied_without_a_tensor_is_fatal(self, directory: Path) -> None:
        change_tensors(directory, lambda tensors: tensors.pop("lm_head.weight"))
        assert "'lm_head.weight'" in refusal(directory)

    def test_tied_with_a_tensor_ties_and_warns(self, tmp_path: Path) -> None:
        reference = random_llama(tie_word_embeddings=True)
        reference.save_pretrained(tmp_path)
        change_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.randn(96, 64)}))
        model = load(tmp_path)
        error = float((one_prefill(model, IDS) - reference_logits(reference, IDS)).abs().max())
        assert error <= 1e-4
        (warning,) = model.runtime.warnings
        assert "'lm_head.weight' is not used" in warning

    def test_untied_and_quantized(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        reference = write_gguf(random_llama(), path, lambda name: Kind.Q4_1)
        error = float((one_prefill(load(path), IDS) - reference_logits(reference, IDS)).abs().max())
        assert error <= 1e-4

    def test_a_shared_table_counts_once(self, tmp_path: Path) -> None:
        random_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
        shared, packed = (load(tmp_path, kernels=(name,)) for name in ("torch", "onednn"))
        assert packed.weight_bytes - shared.weight_bytes == 96 * 64 * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "'GPT2LMHeadModel'.*supported: .*LlamaForCausalLM.*Qwen3ForCausalLM",
        ),
        ({"architectures": "absent"}, "architecture None is not supported"),
        ({"architectures": [["LlamaForCausalLM"]]}, "is not supported"),
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu', expected is one of silu, swish, gelu"),
        ({"hidden_size": "absent"}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' is '64', expected is a whole number"),
        ({"hidden_size": True}, "'hidden_size' is True"),
        ({"hidden_size": -64}, "'hidden_size' is -64, expected is a whole number from 1"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000, expected is .* to 4096"),
        ({"vocab_size": 10**12}, "'vocab_size' is 1000000000000"),
        ({"vocab_size": 2**24}, "16777216"),
        ({"max_position_embeddings": 10**15}, "'max_position_embeddings' is"),
        ({"max_position_embeddings": 2**27}, "set max_model_len to at most"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' is 3, expected is a divisor of"),
        ({"num_key_value_heads": 8}, "'num_key_value_heads' is 8"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
        ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0"),
        ({"attention_bias": "yes"}, "'attention_bias' is 'yes', expected is true or false"),
        ({"attention_bias": True}, "'model.layers.0.self_attn.q_proj.bias' 64 is missing"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "'rope_parameters.rope_type' is 'mrope', expected is"),
        ({"rope_parameters": {"rope_type": 7}}, "'rope_parameters.rope_type' is 7"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'rope_parameters.factor' is missing"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "'rope_parameters.factor' is 0"),
        ({"rope_parameters": [1]}, "'rope_parameters' is .*, expected is an object"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.01}},
            "partial_rotary_factor",
        ),
        ({"quantization_config": {"quant_method": "quip"}}, "none: the checkpoint is quantized with quip"),
        ({"text_config": {"quantization_config": {"quant_method": "aqlm"}}}, "quantized with aqlm"),
    ],
)
def test_a_configuration_that_cannot_be_served(directory: Path, changes: dict[str, Any], said: str) -> None:
    import re

    change_config(directory, **changes)
    message = refusal(directory)
    assert re.search(said, message), message


def test_quantization_settings_under_their_first_name(directory: Path) -> None:
    change_config(directory, compression_config={"quant_method": "quip"})
    assert "the checkpoint is quantized with quip" in refusal(directory)


def test_quantization_settings_that_disagree(directory: Path) -> None:
    change_config(directory, quantization_config={"bits": 4, "quant_method": "gptq"})
    (directory / "quantize_config.json").write_text('{"bits": 8}')
    said = refusal(directory)
    assert "quantization_config and quantize_config.json differ in 'bits'" in said


@pytest.mark.parametrize(
    ("changes", "theta", "factor"),
    [
        ({"rope_parameters": "absent", "rope_theta": 5e5}, 5e5, None),
        (
            {
                "rope_parameters": "absent",
                "rope_theta": 5e5,
                "rope_scaling": {"type": "linear", "factor": 2.0},
            },
            5e5,
            2.0,
        ),
        ({"rope_parameters": {"rope_theta": 7e3, "rope_type": "linear", "factor": 3}}, 7e3, 3.0),
        ({"rope_parameters": "absent"}, 1e4, None),
        ({"rope_parameters": "absent", "rope_scaling": None}, 1e4, None),
    ],
)
def test_every_spelling_of_rotary_settings(
    directory: Path, changes: dict[str, Any], theta: float, factor: float | None
) -> None:
    change_config(directory, **changes)
    rotary = load(directory).description.rotaries[0]
    assert rotary.theta == theta
    assert getattr(rotary.scaling, "factor", None) == factor


def test_shards(directory: Path) -> None:
    reference_model = random_llama()
    whole = one_prefill(load(directory), IDS)
    sharded = directory.parent / "sharded"
    reference_model.save_pretrained(sharded, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert torch.equal(one_prefill(load(sharded), IDS), whole)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    names = index["weight_map"]
    other = next(file for file in names.values() if file != names["model.norm.weight"])
    names["model.norm.weight"] = other
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "'model.norm.weight' does not hold it" in refusal(sharded)


def test_files_cut_short(directory: Path, tmp_path: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert str(weights) in refusal(directory)
    path = tmp_path / "model.gguf"
    write_gguf(random_llama(), path, lambda name: Kind.Q8_0)
    path.write_bytes(path.read_bytes()[:-100])
    assert str(path) in refusal(path)


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path: Path) -> None:
    from hundredfold.models import CheckpointError
    from hundredfold_worker.model.checkpoint.tensors import Entry, MappedFile, MappedTensors

    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    tensors = MappedTensors({"w": Entry(MappedFile(path), "F32", (32,), 0, 128)})
    with pytest.raises(CheckpointError, match="'w' ends past the file's end at 64"):
        tensors.dense("w")


@pytest.mark.parametrize("missing", ["token_embd.weight", "blk.1.ffn_norm.weight", "output_norm.weight"])
def test_a_gguf_tensor_missing(tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf import GGUFWriter

    original = GGUFWriter.add_tensor

    def all_but_one(self: GGUFWriter, name: str, *args: Any, **kwargs: Any) -> None:
        if name != missing:
            original(self, name, *args, **kwargs)

    monkeypatch.setattr(GGUFWriter, "add_tensor", all_but_one)
    path = tmp_path / "model.gguf"
    write_gguf(random_llama(), path, lambda name: Kind.F16)
    said = refusal(path)
    assert f"'{missing}'" in said
    assert "missing" in said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.architecture", "mamba", "architecture 'mamba' is not supported; supported: .*llama, olmo2"),
        ("llama.expert_count", 8, "mixtures of experts"),
        ("llama.block_count", 3, "'blk.2.attn_norm.weight' 64 is missing"),
        ("llama.attention.head_count", 5, r"'llama.attention.head_count_kv' is 2, expected is a divisor"),
        ("llama.attention.value_length", 8, "'llama.attention.value_length' is 8, expected is equal"),
        ("llama.rope.dimension_count", 7, "'llama.rope.dimension_count' is 7, expected is even"),
        (
            "llama.rope.scaling.type",
            "su",
            "'llama.rope.scaling.type' is 'su', expected is one of none, linear, yarn, longrope",
        ),
        ("llama.attention.layer_norm_rms_epsilon", float("inf"), "'llama.attention.layer_norm_rms_epsilon'"),
        ("llama.context_length", "long", "'llama.context_length' is str, not a whole number"),
    ],
)
def test_gguf_metadata_that_cannot_be_served(tmp_path: Path, key: str, value: Any, said: str) -> None:
    import re

    from support.llama_checkpoints import overridden

    path = tmp_path / "model.gguf"
    with overridden(key, value):
        write_gguf(random_llama(), path, lambda name: Kind.F16)
    message = refusal(path)
    assert re.search(said, message), message
