"""Which form each matrix has: what a quantization section of a config.json says of it, or a wish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from hundredfold.errors import StartError
from hundredfold.plugin.patterns import compile_pattern
from hundredfold_worker.estimate.config_values import Config
from hundredfold_worker.estimate.forms import Form, Kind, dense
from hundredfold_worker.estimate.parts import Part, Role

Chooser = Callable[[Part], Form]

INT8 = Form("int8 by channel", Kind.CHANNEL, 8, None, 32)
FP8 = Form("fp8 by channel", Kind.FLOAT8, 8, None, 32)
NF4 = Form("nf4 g64", Kind.CODEBOOK, 4, 64, 32)
AT_LOAD: Mapping[str, Form] = {
    "int8": INT8,
    "fp8": FP8,
    "nf4": NF4,
    "fp4": replace(NF4, label="fp4 g64"),
}
"""What quantizes while a model loads, by what its name ends with, whoever does it."""
FOR_INT8_INPUTS = ("int8",)
"""Those whose weights are meant for int8 inputs."""


def chooser_of(config: Config) -> tuple[str, Chooser]:
    """The format's name and each part's form as stored. Raises ``StartError`` for a method not known."""
    named = config.text("torch_dtype") or config.text("dtype") or "bfloat16"
    try:
        plain = dense(named)
    except KeyError:
        raise StartError(f"{config.path}: 'torch_dtype' is {named!r}, no float type") from None
    section = config.section("quantization_config") or config.section("compression_config")
    if not section:
        return plain.label, lambda part: plain
    method = str(section.get("quant_method", ""))
    make = _METHODS.get(method)
    if make is None:
        known = ", ".join(sorted(_METHODS))
        raise StartError(f"{config.path}: quant_method {method!r} is not known; known are {known}")
    inside = make(section)
    return method, lambda part: inside(part) or plain


def at_load(name: str, exclude: Sequence[str], stored: Chooser) -> Chooser:
    """What a quantizer makes of the linear layers. Raises ``StartError`` when it is not known."""
    form = AT_LOAD.get(name.rpartition("-")[2])
    if form is None:
        raise StartError(f"quantization {name!r} is not known here; known are {', '.join(AT_LOAD)}")

    def choose(part: Part) -> Form:
        excepted = any(fnmatchcase(part.name, pattern) for pattern in exclude)
        return stored(part) if part.role is Role.EMBEDDING or excepted else form

    return choose


_Maybe = Callable[[Part], Form | None]


def _whole(section: Mapping[str, Any], key: str, default: int) -> int:
    value = section.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value != 0 else default


def _names(section: Mapping[str, Any], *keys: str) -> list[str]:
    found: list[str] = []
    for key in keys:
        value = section.get(key)
        found += [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    return found


def _linear(part: Part, excluded: Sequence[str], head: bool = False) -> bool:
    """Whether a format covers the part: no table, no router, nothing that is excepted."""
    if part.role is Role.EMBEDDING or (part.role is Role.HEAD and not head):
        return False
    return not part.name.endswith(".mlp.gate") and not any(_named(part.name, name) for name in excluded)


def _named(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return _matches(pattern[3:], name)
    return name == pattern or name.endswith(f".{pattern}") or f"{pattern}." in f"{name}."


def _matches(pattern: str, name: str) -> bool:
    try:
        return compile_pattern(pattern, "quantization_config").match(name) is not None
    except ValueError as error:
        raise StartError(str(error)) from None


def _grouped(
    label: str, bits: int, group: int, zero_bits: float, column_bits: float = 0, one_zero: bool = False
) -> Form:
    said = "row" if group < 0 else f"g{group}"
    return Form(
        f"{label} {bits}-bit {said}",
        Kind.GROUPED,
        bits,
        None if group < 0 else group,
        16,
        zero_bits,
        column_bits,
        one_zero,
    )


def _gptq(section: Mapping[str, Any]) -> _Maybe:
    bits, group = _whole(section, "bits", 4), _whole(section, "group_size", 128)
    rules = section.get("dynamic")
    rules = rules if isinstance(rules, dict) else {}
    head = section.get("lm_head") is True
    symmetric = section.get("sym") is not False

    def choose(part: Part) -> Form | None:
        if not _linear(part, (), head):
            return None
        own: Mapping[str, Any] = {}
        for pattern, rule in rules.items():
            if _matches(pattern.removeprefix("+:").removeprefix("-:"), part.name):
                if pattern.startswith("-:"):
                    return None
                own = rule if isinstance(rule, dict) else {}
                break
        width = _whole(own, "bits", bits)
        return _grouped("gptq", width, _whole(own, "group_size", group), width, 32, one_zero=symmetric)

    return choose


def _awq(section: Mapping[str, Any]) -> _Maybe:
    bits = _whole(section, "bits", _whole(section, "w_bit", 4))
    group = _whole(section, "group_size", _whole(section, "q_group_size", 128))
    excluded = _names(section, "modules_to_not_convert")
    form = _grouped("awq", bits, group, bits, one_zero=section.get("zero_point") is False)
    return lambda part: form if _linear(part, excluded) else None


def _auto_round(section: Mapping[str, Any]) -> _Maybe:
    form = _grouped("auto-round", _whole(section, "bits", 4), _whole(section, "group_size", 128), 4)
    return lambda part: form if _linear(part, ()) else None


def _bitsandbytes(section: Mapping[str, Any]) -> _Maybe:
    excluded = _names(section, "llm_int8_skip_modules") or ["lm_head"]
    if section.get("load_in_4bit") is not True:
        return lambda part: INT8 if _linear(part, excluded) else None
    scales = 8 + 32 / 256 if section.get("bnb_4bit_use_double_quant") is True else 32
    kind = str(section.get("bnb_4bit_quant_type", "fp4"))
    form = Form(f"{kind} g64", Kind.CODEBOOK, 4, 64, scales)
    return lambda part: form if _linear(part, excluded) else None


def _fp8(section: Mapping[str, Any]) -> _Maybe:
    excluded = _names(section, "modules_to_not_convert", "ignored_layers", "ignore")
    block = section.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block):
        form = Form(f"fp8 {block[0]}x{block[1]}", Kind.FLOAT8, 8, block[1], 32 / block[0])
    else:
        form = Form("fp8", Kind.FLOAT8, 8)
    return lambda part: form if _linear(part, excluded) else None


def _mxfp4(section: Mapping[str, Any]) -> _Maybe:
    excluded = _names(section, "modules_to_not_convert")
    form = Form("mxfp4", Kind.CODEBOOK, 4, 32, 8)
    # gpt-oss writes only its experts so
    return lambda part: form if part.copies > 1 and _linear(part, excluded) else None


def _compressed_tensors(section: Mapping[str, Any]) -> _Maybe:
    groups = section.get("config_groups")
    schemes = (
        [entry for entry in groups.values() if isinstance(entry, dict)] if isinstance(groups, dict) else []
    )
    excluded = _names(section, "ignore")
    rules = [(_names(scheme, "targets"), _scheme(scheme)) for scheme in schemes]

    def choose(part: Part) -> Form | None:
        if not _linear(part, excluded, head=True):
            return None
        for targets, form in rules:
            if any(target == "Linear" or _named(part.name, target) for target in targets):
                return form
        return None

    return choose


def _scheme(scheme: Mapping[str, Any]) -> Form | None:
    weights = scheme.get("weights")
    if not isinstance(weights, dict):
        return None
    bits, group = _whole(weights, "num_bits", 8), _whole(weights, "group_size", -1)
    strategy = str(weights.get("strategy") or ("group" if group > 0 else "channel"))
    zero = 0 if weights.get("symmetric", True) is True else bits
    if weights.get("type") == "float":
        if bits == 8:
            block = weights.get("block_structure")
            if strategy == "block" and isinstance(block, list) and len(block) == 2:
                return Form(f"fp8 {block[0]}x{block[1]}", Kind.FLOAT8, 8, int(block[1]), 32 / int(block[0]))
            return Form(f"fp8 by {strategy}", Kind.FLOAT8, 8, None, 0 if strategy == "tensor" else 16)
        return Form(f"fp4 g{group}", Kind.CODEBOOK, bits, group if group > 0 else None, 8)
    if bits == 8 and group < 0 and not zero:
        return Form("int8 by channel", Kind.CHANNEL, 8, None, 16)
    return _grouped("int", bits, group if strategy == "group" else -1, zero)


def _mixed(section: Mapping[str, Any]) -> _Maybe:
    rules = section.get("rules")
    parsed: list[tuple[str, _Maybe | None]] = []
    for rule in rules if isinstance(rules, list) else []:
        if not isinstance(rule, dict):
            continue
        inside = rule.get("config")
        made: _Maybe | None = None
        if isinstance(inside, dict):
            make = _METHODS.get(str(inside.get("quant_method")))
            if make is None or make is _mixed:
                raise StartError(
                    f"quantization_config: no format {inside.get('quant_method')!r} in a mixed one"
                )
            made = make(inside)
        parsed.append((str(rule.get("layers")), made))

    def choose(part: Part) -> Form | None:
        for pattern, form in parsed:
            if fnmatchcase(part.name, pattern):
                return None if form is None else form(part)
        return None

    return choose


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], _Maybe]] = {
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "mixed": _mixed,
    "mxfp4": _mxfp4,
}
