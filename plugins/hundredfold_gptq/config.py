"""What a GPTQ checkpoint's section says: bits, groups, stored zero points, rules for single layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hundredfold.plugin.layer_rules import LayerRules, read_rules
from hundredfold.plugin.section import Section

BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2")
AUTO_ROUND = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:exllamav2": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round": "gptq_v2",
}
"""auto-round's layouts that are ours, by what it calls them."""
UNREADABLE = {
    "gptq_p": "format 'gptq_p' is not read: its tensors look like those of gptq, with their bits in planes",
    "marlin": "format 'marlin' is not read: its tensors are arranged for one kernel",
}
PLAIN_INTEGERS = ("int",)
FULL_WIDTH = 16


@dataclass(frozen=True, slots=True)
class LayerFormat:
    """How one layer is stored."""

    bits: int
    group_size: int
    """-1 for whole rows."""
    symmetric: bool
    """Whether every zero point is said to be the middle."""


@dataclass(frozen=True, slots=True)
class GptqConfig:
    """One checkpoint's section."""

    layers: LayerRules[LayerFormat]
    less_one: bool
    """Whether zero points are stored less one (version 1 of the format)."""
    less_one_by_words: bool
    """Whether one was taken from whole words, so that a zero point of 0 borrowed from its neighbour."""
    act_order: bool
    """Whether columns may belong to groups in any order."""
    head: bool
    """Whether the output layer is said to be quantized too."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> GptqConfig:
        """Raises ``ValueError`` naming the key at fault."""
        section = Section(values)
        word = section.text("pack_dtype", default="int32")
        if word != "int32":
            raise section.wrong("pack_dtype", "int32, the only words that are read")
        less_one = format_name(values) == "gptq"
        return cls(
            layers=read_rules(section, _layer_format),
            less_one=less_one,
            less_one_by_words=less_one and _is_gptqmodels(values),
            act_order=section.flag("desc_act", default=False),
            head=values.get("lm_head") is True,
        )


def refusals(section: Mapping[str, Any]) -> list[str]:
    """Why a section is not of this format, or of a kind that is not read; empty when it is."""
    method = section.get("quant_method")
    if method in ("auto-round", "intel/auto-round"):
        return _auto_round_refusals(section)
    if method is None and "group_size" in section and "desc_act" in section:
        method = "gptq"  # AutoGPTQ's own file, which names no method
    if method != "gptq":
        return [f"reads quant_method gptq, not {_shown(method)}"]
    named = format_name(section)
    if isinstance(named, str) and named in UNREADABLE:
        return [UNREADABLE[named]]
    if named not in FORMATS:
        return [f"reads formats {' and '.join(FORMATS)}, not {_shown(named)}"]
    if section.get("bits") == 3 and _is_gptqmodels(section) and not _named(section):
        return [
            "its writer always names the layout in 'checkpoint_format', and that key is gone: with 3 bits "
            "it may be 'gptq_p', which looks the same and is not read"
        ]
    return []


def format_name(section: Mapping[str, Any]) -> Any:
    """The layout's name; who says nothing writes the first version."""
    if str(section.get("quant_method")).endswith("auto-round"):
        return AUTO_ROUND[_packing(section)]
    if section.get("is_marlin_format"):
        return "marlin"
    return _named(section) or "gptq"


def _auto_round_refusals(section: Mapping[str, Any]) -> list[str]:
    packing = _packing(section)
    if packing not in AUTO_ROUND:
        return [f"reads auto-round's layouts {', '.join(AUTO_ROUND)}, not {_shown(packing)}"]
    kind = section.get("data_type", "int")
    if kind not in PLAIN_INTEGERS:
        return [f"reads auto-round's data_type int, not {_shown(kind)}"]
    width = section.get("act_bits", FULL_WIDTH)
    if isinstance(width, int) and width < FULL_WIDTH:
        return [f"auto-round with inputs of {width} bits (act_bits) is not read"]
    return []


def _packing(section: Mapping[str, Any]) -> str:
    named = section.get("packing_format") or section.get("backend") or "auto_round:auto_gptq"
    return "auto_round:auto_gptq" if named == "auto" else str(named)


def _named(section: Mapping[str, Any]) -> Any:
    return section.get("checkpoint_format") or section.get("format")


def _is_gptqmodels(section: Mapping[str, Any]) -> bool:
    """Whether GPTQModel wrote the checkpoint."""
    meta = section.get("meta")
    return isinstance(meta, Mapping) and "gptqmodel:" in str(meta.get("quantizer"))[:1000]


def _layer_format(section: Section) -> LayerFormat:
    symmetric = section.flag("sym", default=False)
    return LayerFormat(section.one_of("bits", BITS), section.group_size(), symmetric)


def _shown(value: object) -> str:
    return repr(value)[:80]
