"""Services ask what a plugin can do, never which one it is: no plugin's name stands in their code."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from support.repo import ROOT, hand_written, packages

TO_COME = {
    *("gptq", "awq", "bitsandbytes", "smoothquant", "marlin", "hqq", "exl2", "nvfp4"),
    *("eagle", "medusa", "ngram", "flashinfer", "triton"),
}
"""Names that plugins of other houses carry, refused before ours arrive."""

WITH_ANOTHER_MEANING = {
    *("bf16", "fp32", "int8", "fp8", "fp8_e5m2", "int4"),
    *("none", "torch", "gguf", "cpu", "auto"),
}
"""Also the name of a type, a library, a file format or a device: allowed but where a plugin is compared."""

WORDS_OF_CHECKPOINTS = {"gptq", "awq", "bitsandbytes", "compressed-tensors", "mixed", "smoothquant"}
"""What a config.json calls its format, and what is made by such a method: allowed but where a plugin is
compared."""

ASKS_WHO = re.compile(
    r"(^|[._])(name|method|plugin|backend|quantization|attention|kernels?|kv_cache|speculative)$"
)


def plugin_names() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = ("quantization", "quantizers", "kv_cache", "attention", "speculative", "kernels", "elementwise")
    points = project["entry-points"]
    return {name for group in groups for name in points.get(f"hundredfold.{group}", {})}


def findings(source: str, names: set[str], modules: list[str]) -> list[str]:
    """Places in ``source`` that name a plugin or its package."""
    distinct = (names | TO_COME) - WITH_ANOTHER_MEANING - WORDS_OF_CHECKPOINTS
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text.lower() in distinct or any(module in text for module in modules):
                found.append(f"line {node.lineno}: {text!r}")
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            who = any(ASKS_WHO.search(ast.unparse(side)) for side in sides)
            literals = {n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)}
            if who and literals & (names | TO_COME):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Match) and ASKS_WHO.search(ast.unparse(node.subject)):
            cases = {
                n.value for case in node.cases for n in ast.walk(case.pattern) if isinstance(n, ast.Constant)
            }
            if cases & (names | TO_COME):
                found.append(f"line {node.lineno}: match {ast.unparse(node.subject)}")
    return found


def test_no_service_names_a_plugin():
    names, modules = plugin_names(), packages("plugins")
    assert {"torch", "onednn", "gguf"} <= names
    guilty = {
        str(path.relative_to(ROOT)): found
        for path in hand_written(".py")
        if path.is_relative_to(ROOT / "services")
        and (found := findings(path.read_text(encoding="utf-8"), names, modules))
    }
    assert guilty == {}


@pytest.mark.parametrize(
    "source",
    [
        'if method == "gptq": pass',
        'KERNELS = {"onednn": 1}',
        'if plugin.name in ("torch", "other"): pass',
        'importlib.import_module("hundredfold_torch.kernels")',
        'match record.name:\n    case "gguf": pass',
    ],
)
def test_a_named_plugin_is_found(source: str):
    assert findings(source, {"torch", "onednn", "gguf"}, ["hundredfold_torch"])


@pytest.mark.parametrize(
    "source", ['if files.container == "gguf": pass', 'dtype: str = "bf16"', "import torch"]
)
def test_the_same_word_with_another_meaning_is_not(source: str):
    assert not findings(source, {"torch", "bf16", "gguf"}, ["hundredfold_torch"])
