"""``hundredfold estimate`` asks the plugins: strangers' formats, quantizers, caches and attention."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hundredfold_worker.estimate import command
from support.distributions import put_distribution
from support.repo import ROOT

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "torch_dtype": "float16",
}
LINEAR = 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
REST = 2 * (2 * 4096 * 1024 + 5 * 1024)
CPU = ("--device", "cpu", "--dtype", "auto", "--memory", "8GiB")

FORMAT = """
from hundredfold.plugin import ChannelInt8Weight, LayerRole, WeightForm

class Plugin:
    name = "own"
    api_version = 1

    def refuses(self, checkpoint):
        method = (checkpoint.quantization_config or {}).get("quant_method")
        return [] if method == "strangers" else ["reads quant_method strangers"]

    def bind(self, checkpoint):
        return Method()

class Method:
    def covers(self, layer):
        return not layer.name.startswith(("model.embed", "lm_head"))

    def load(self, layer, tensors):
        raise NotImplementedError
"""
FORM = """
    def form(self, layer):
        rows, columns = layer.shape
        return WeightForm("own 8-bit", ChannelInt8Weight, rows * columns + 4 * rows)
"""
QUANTIZER = """
from hundredfold.plugin import Activations, GroupedIntWeight
from hundredfold.plugin.forms import grouped

class Plugin:
    name = "own"
    api_version = 1
    activations = Activations.INT8

    def refuses(self, layer):
        return []

    def quantize(self, layer, matrix):
        raise NotImplementedError
"""
GROUPS = """
    def form(self, layer):
        return None if layer.name == "lm_head" else grouped("own", layer, 4, 64, 0)
"""
CACHE = """
from hundredfold.plugin import Encoding, ScalePolicy

class Plugin:
    name = "own"
    api_version = 1
    encoding = Encoding.INT8
    scales = ScalePolicy.PER_TOKEN_HEAD

    def refuses(self, spec):
        return []
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "site"
    made.mkdir()
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))  # each test's own plugin has one module's name
    return made


def run(tmp_path: Path, *options: str, section: dict[str, Any] | None = None) -> Result:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG if section is None else CONFIG | {"quantization_config": section}))
    return CliRunner().invoke(command, [str(path), *CPU, *options])


def told(tmp_path: Path, *options: str, section: dict[str, Any] | None = None) -> dict[str, Any]:
    done = run(tmp_path, *options, "--json", section=section)
    assert done.exit_code in (0, 1), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


STRANGERS = {"quant_method": "strangers"}


def test_a_strangers_format_says_what_it_makes(tmp_path: Path, site: Path) -> None:
    put_distribution(site, "own-format", "hundredfold.quantization", "own", FORMAT + FORM)
    found = told(tmp_path, section=STRANGERS)
    assert (found["format"], found["forms"]["own 8-bit"]) == ("own", LINEAR)
    scales = 4 * 2 * (5 * 1024 + 2 * 4096)
    assert found["stored_bytes"] == LINEAR + scales + REST
    mixed = {"quant_method": "mixed", "rules": [{"layers": "*.mlp.*", "config": STRANGERS}]}
    assert told(tmp_path, section=mixed)["forms"]["own 8-bit"] == 2 * 3 * 1024 * 4096


def test_a_format_that_does_not_say_it_is_named_and_nothing_is_guessed(tmp_path: Path, site: Path) -> None:
    put_distribution(site, "own-format", "hundredfold.quantization", "own", FORMAT)
    mixed = {"quant_method": "mixed", "rules": [{"layers": "*.mlp.*", "config": STRANGERS}]}
    for section, words in (
        (STRANGERS, "format 'own' reads this checkpoint, but does not say what it makes of a layer"),
        (mixed, "the format of rule '*.mlp.*' does not say what it makes"),
    ):
        done = run(tmp_path, section=section)
        assert done.exit_code == 1
        assert words in " ".join(done.output.split())
        assert "Traceback" not in done.output


def test_a_format_that_fails_is_named(tmp_path: Path, site: Path) -> None:
    source = FORMAT + "\n    def form(self, layer):\n        return 1 // 0\n"
    put_distribution(site, "own-format", "hundredfold.quantization", "own", source)
    done = run(tmp_path, section=STRANGERS)
    assert (done.exit_code, "plugin 'own' failed: ZeroDivisionError" in done.output) == (1, True)


def test_a_format_that_nobody_reads_is_told_with_everybodys_reasons(tmp_path: Path) -> None:
    done = run(tmp_path, section=STRANGERS)
    assert done.exit_code == 1
    for words in ("quant_method 'strangers'", "gptq: reads quant_method gptq", "fp8: reads"):
        assert words in " ".join(done.output.split())


def test_a_strangers_quantizer(tmp_path: Path, site: Path) -> None:
    put_distribution(site, "own-quantizer", "hundredfold.quantizers", "own", QUANTIZER + GROUPS)
    found = told(tmp_path, "--quantization", "own", "--quantization-exclude", "*.o_proj")
    assert found["forms"]["own 4-bit g64"] == LINEAR - 2 * 1024 * 1024
    small, plain = (
        told(tmp_path, *options)["memory"]["weight_bytes"] for options in (("--quantization", "own"), ())
    )
    assert small < plain / 2


def test_a_quantizer_that_does_not_say_it(tmp_path: Path, site: Path) -> None:
    put_distribution(site, "own-quantizer", "hundredfold.quantizers", "own", QUANTIZER)
    done = run(tmp_path, "--quantization", "own")
    assert done.exit_code == 1
    assert "quantization 'own' does not say what it makes" in done.output


def test_a_strangers_cache(tmp_path: Path, site: Path) -> None:
    put_distribution(site, "own-cache", "hundredfold.kv_cache", "own", CACHE)
    own = told(tmp_path, "--kv-cache-dtype", "own")["memory"]["cache_bytes_per_token"]
    assert own == told(tmp_path, "--kv-cache-dtype", "int8")["memory"]["cache_bytes_per_token"]


def test_a_format_by_name_has_to_be_the_checkpoints(tmp_path: Path) -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert told(tmp_path, "--quantization", "gptq", section=gptq)["forms"]["gptq 4-bit g128"] == LINEAR
    done = run(tmp_path, "--quantization", "awq", section=gptq)
    assert (done.exit_code, "awq: reads quant_method awq" in done.output) == (1, True)
    fp8 = {"quant_method": "fp8"}  # the name of a format and of a quantizer
    assert told(tmp_path, "--quantization", "fp8", section=fp8)["forms"]["fp8"] == LINEAR
    assert "fp8 by channel" in told(tmp_path, "--quantization", "fp8")["forms"]


@pytest.mark.parametrize("name", ["sparse", "cpu", "torch"])
def test_attention_that_is_named_says_what_it_keeps(tmp_path: Path, name: str) -> None:
    def token(*options: str) -> int:
        size: int = told(tmp_path, "--kv-cache-dtype", "int8", *options)["memory"]["cache_bytes_per_token"]
        return size

    codes = 2 * 16 * 36  # two layers of 16 heads: 64 codes of 4 bits, and a scale
    assert token("--attention", name) == token() + (codes if name == "sparse" else 0)


def test_attention_that_cannot(tmp_path: Path) -> None:
    done = run(tmp_path, "--attention", "own")
    assert (done.exit_code, "it is not installed" in done.output) == (1, True)


def test_a_section_of_its_own_file_counts(tmp_path: Path) -> None:
    """Where there are files, as at a start: without it this checkpoint would be plain floats."""
    source = ROOT / "tests" / "fixtures" / "gptq" / "v2-asymmetric"
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "quantize_config.json"):
        (tmp_path / name).symlink_to(source / name)
    done = CliRunner().invoke(command, [str(tmp_path), *CPU, "--json"])
    assert json.loads(done.stdout)["format"] == "gptq"


def test_sections_that_disagree_are_named(tmp_path: Path) -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    text = CONFIG | {"quantization_config": gptq | {"bits": 8}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "two", "text_config": text, "quantization_config": gptq}))
    done = CliRunner().invoke(command, [str(path), *CPU])
    said = " ".join(done.output.split())
    assert done.exit_code == 1
    assert "quantization_config and text_config.quantization_config differ in 'bits'" in said
    text["quantization_config"] = gptq
    path.write_text(json.dumps({"model_type": "two", "text_config": text}))
    done = CliRunner().invoke(command, [str(path), *CPU, "--json"])
    assert json.loads(done.stdout)["forms"]["gptq 4-bit g128"] == LINEAR


SECTIONS = [
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
    {"quant_method": "awq", "bits": 4, "group_size": 128},
    {"quant_method": "fp8"},
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
]


def test_no_torch_is_loaded_for_it(tmp_path: Path) -> None:
    """Formats and quantizers of the house state forms without it: it takes longer than the estimate."""
    paths = []
    for number, section in enumerate(SECTIONS):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(CONFIG | {"quantization_config": section}))
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from hundredfold_worker.estimate import command\n"
        "for path in sys.argv[1:]:\n"
        f"    for more in {[(), ('--quantization', 'int8'), ('--quantization', 'bitsandbytes-nf4')]!r}:\n"
        f"        done = CliRunner().invoke(command, [path, *{CPU!r}, *more])\n"
        "        assert done.exit_code == 0, done.output\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)], timeout=120, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
