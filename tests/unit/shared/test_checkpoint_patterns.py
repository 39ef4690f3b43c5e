"""Patterns of checkpoints: those of writers are compiled, those that could take for ever are refused."""

from __future__ import annotations

import time

import pytest

from hundredfold.plugin.patterns import compile_pattern

LONGEST = "model.layers.127.block_sparse_moe.experts.255.gate_up_projection"


@pytest.mark.parametrize(
    "text",
    [
        r".*q_proj.*",
        r"model\.layers\.(0|1)\.mlp\..*",
        r".*layers\.\d+\.mlp\.experts\.\d+\..*_proj$",
        r"(?:q|k|v)_proj",
        "(?i).*Head",
        "[a-z+*|]+",
        r"model\.layers\.(?:" + "|".join(map(str, range(80))) + r")\.(?:mlp|self_attn)\.(?:q|k|v|o)_proj",
        r".*?\.(?P<part>mlp)\..*_proj(?:\.weight)?",
        r"\(.*\)",
    ],
)
def test_patterns_of_writers(text: str) -> None:
    assert compile_pattern(text, "ignore").pattern == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a+)+$", "repeats a group that holds repeats or choices itself"),
        ("(a|a)*b", "repeats a group that holds repeats or choices itself"),
        ("((a+))*", "repeats a group that holds repeats or choices itself"),
        ("(a|b){31}", "repeats a group that holds repeats or choices itself"),
        (".?" * 60 + "Z", "has 0 repeats without limit and 1152921504606846976 combinations of choices"),
        ("(?:.|..)" * 30 + "Z", "has 0 repeats without limit and 1073741824 combinations"),
        ("(?:.?){31}.{31}X", "repeats a group that holds repeats or choices itself"),
        ("(a{1,9}){1,99}", "repeats a group that holds repeats or choices itself"),
        (r"(a)\1", "refers back to a group"),
        ("(?P<x>a)(?P=x)", "refers back to a group"),
        (".*.*.*.*.*.*x", "has 6 repeats without limit and 1 combinations of choices, which is too many"),
        ("(", "is no regular expression"),
        ("*", "is no regular expression"),
        ("x" * 1001, "has 1001 characters, the limit is 1000"),
    ],
)
def test_patterns_that_could_take_for_ever_or_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="ignore: pattern") as caught:
        compile_pattern(text, "ignore")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", [".*.*.*.*.*Z", ".?" * 22 + "Z", ".*.*" + ".?" * 11 + "Z"])
def test_the_slowest_that_is_allowed_ends_soon(text: str) -> None:
    pattern = compile_pattern(text, "ignore")
    began = time.process_time()
    assert pattern.match(LONGEST) is None
    assert time.process_time() - began < 2
