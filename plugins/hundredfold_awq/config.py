"""What an AWQ checkpoint's section says: bits, groups, version, rules for single layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hundredfold.plugin.layer_rules import LayerRules, read_rules
from hundredfold.plugin.section import Section

BITS = (2, 3, 4, 5, 6, 7, 8)
GEMM = "gemm"
AUTO_ROUND = ("auto_round:auto_awq", "auto_round:awq")
"""What auto-round calls this layout."""
UNREADABLE = {
    "gemv": "version 'gemv' is not read: its words run along the input features",
    "gemv_fast": "version 'gemv_fast' is not read: its tensors are arranged for one kernel",
    "llm-awq": "llm-awq's layout is not read: its tensors are arranged for one kernel",
    "marlin": "version 'marlin' is not read: its tensors are arranged for one kernel",
}
FULL_WIDTH = 16


@dataclass(frozen=True, slots=True)
class LayerFormat:
    """How one layer is stored."""

    bits: int
    group_size: int
    """-1 for whole rows."""
    symmetric: bool
    """Whether every zero point is said to be the middle."""


def refusals(section: Mapping[str, Any]) -> list[str]:
    """Why a section is not of this format, or of a kind that is not read; empty when it is."""
    method = section.get("quant_method")
    if method in ("auto-round", "intel/auto-round"):
        return _auto_round_refusals(section)
    if method is None and "q_group_size" in section and "w_bit" in section:
        method = "awq"  # AutoAWQ's own file, which names no method
    if method == "gptq" and _version(section) == GEMM:
        method = "awq"  # GPTQModel's word for what it rounded to the nearest, whatever the layout
    if method != "awq":
        return [f"reads quant_method awq, not {_shown(method)}"]
    named = _version(section)
    if named in UNREADABLE:
        return [UNREADABLE[named]]
    return [] if named == GEMM else [f"reads version {GEMM}, not {_shown(named)}"]


def read_config(values: Mapping[str, Any]) -> LayerRules[LayerFormat]:
    """Each layer's format. Raises ``ValueError`` naming the key at fault."""
    section = Section(values)
    word = section.text("pack_dtype", default="int32")
    if word != "int32":
        raise section.wrong("pack_dtype", "int32, the only words that are read")
    return read_rules(section, _layer_format)


def excepted(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules that the section says were left as they were; reading goes by the tensors."""
    named = values.get("modules_to_not_convert")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def _layer_format(section: Section) -> LayerFormat:
    """AutoAWQ's own file has names of its own for the same."""
    bits = "w_bit" if section.has("w_bit") and not section.has("bits") else "bits"
    group = "q_group_size" if section.has("q_group_size") and not section.has("group_size") else "group_size"
    symmetric = section.values.get("zero_point") is False or section.values.get("sym") is True
    return LayerFormat(section.one_of(bits, BITS), section.group_size(group), symmetric)


def _version(section: Mapping[str, Any]) -> str:
    """The layout's name, in small letters; AutoAWQ's own files that say nothing are gemm."""
    if section.get("backend") == "llm-awq":
        return "llm-awq"
    keys = ("version", "checkpoint_format", "format")
    usual = "gptq" if section.get("quant_method") == "gptq" else GEMM
    return str(next((section[key] for key in keys if section.get(key)), usual)).lower()


def _auto_round_refusals(section: Mapping[str, Any]) -> list[str]:
    packing = section.get("packing_format") or section.get("backend")
    if packing not in AUTO_ROUND:
        return [f"reads auto-round's layout {AUTO_ROUND[0]}, not {_shown(packing)}"]
    kind = section.get("data_type", "int")
    if kind != "int":
        return [f"reads auto-round's data_type int, not {_shown(kind)}"]
    width = section.get("act_bits", FULL_WIDTH)
    if isinstance(width, int) and width < FULL_WIDTH:
        return [f"auto-round with inputs of {width} bits (act_bits) is not read"]
    return []


def _shown(value: object) -> str:
    return repr(value)[:80]
