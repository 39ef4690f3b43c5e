"""What config.json says of the weights, so that other readers know them: one format, or ``mixed``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hundredfold_worker.quantize.recipe import Ends, Method, Recipe

_UNTIED = Ends()

AWQ_BITS = 4
"""The width of awq that every reader knows."""


def quantization_config(recipes: Mapping[str, Recipe | None], ends: Ends = _UNTIED) -> dict[str, Any]:
    """The section for these layers: a format's own where it holds all that are quantized, else ``mixed``."""
    layers = _Layers.of(recipes, ends)
    return _mixed(recipes) if layers is None else _SECTIONS[layers.method](layers)


def sections_beside(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Files in which older readers look for the section, by name."""
    return {"quantize_config.json": config} if config["quant_method"] == Method.GPTQ.value else {}


def known_readers(recipes: Mapping[str, Recipe | None], ends: Ends = _UNTIED) -> str:
    """Who reads such a checkpoint."""
    layers = _Layers.of(recipes, ends)
    if layers is None:
        return "hundredfold alone: it mixes methods, or the embedding of others is dense"
    if layers.method is Method.AWQ and layers.common.bits != AWQ_BITS:
        return f"hundredfold and GPTQModel; transformers read {AWQ_BITS} bits of this format"
    if layers.method.grouped and layers.head:
        return "hundredfold and GPTQModel; transformers read no output layer of this format"
    if layers.method is Method.GPTQ and (layers.others or layers.dense):
        return "hundredfold and GPTQModel; transformers read this format only where every layer has it alike"
    return "hundredfold, transformers and others"


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers that one format holds."""

    common: Recipe
    """What most have."""
    others: Mapping[str, Recipe]
    """By pattern; only of gptq."""
    dense: Sequence[str]
    """Names of layers that stay."""
    ends: Ends
    head: bool
    """Whether the output layer is quantized."""
    embedding: bool

    @property
    def method(self) -> Method:
        return self.common.method

    @classmethod
    def of(cls, recipes: Mapping[str, Recipe | None], ends: Ends) -> _Layers | None:
        """``None`` where no format of others has words for it."""
        kinds = Counter(_kind(recipe) for recipe in recipes.values() if recipe is not None)
        common = kinds.most_common(1)[0][0]
        head, embedding = ends.head in recipes, ends.embedding in recipes
        if len(kinds) > 1 and not _differ_in_rules_alone(kinds):
            return None
        if embedding and (common.method.grouped or (ends.tied and not head)):
            return None
        dense = [name for name, recipe in recipes.items() if recipe is None]
        others = {
            pattern: recipe
            for pattern, recipe in _patterns(recipes).items()
            if recipe is not None and _kind(recipe) != common
        }
        return cls(common, others, dense, ends, head, embedding)


def _differ_in_rules_alone(kinds: Iterable[Recipe]) -> bool:
    """Whether gptq's rules for single layers can say how these differ."""
    return all(kind.method is Method.GPTQ for kind in kinds) and len({kind.act_order for kind in kinds}) == 1


def _kind(recipe: Recipe) -> Recipe:
    """Recipes that are read alike are one."""
    return Recipe(Method.INT8) if recipe.method is Method.SMOOTHQUANT else recipe


def _gptq(layers: _Layers) -> dict[str, Any]:
    common = layers.common
    section: dict[str, Any] = {
        "quant_method": common.method.value,
        **_gptq_layer(common),
        "desc_act": common.act_order,
        "checkpoint_format": "gptq",
        "format": "gptq",
        "pack_dtype": "int32",
        "lm_head": layers.head,
        "meta": {"quantizer": ["hundredfold"]},
    }
    rules: dict[str, Any] = {f"-:^{re.escape(name)}$": {} for name in layers.dense}
    rules |= {f"+:{_expression(pattern)}": _gptq_layer(own) for pattern, own in layers.others.items()}
    return {**section, "dynamic": rules} if rules else section


def _gptq_layer(recipe: Recipe) -> dict[str, Any]:
    return {"bits": recipe.bits, "group_size": recipe.group_size, "sym": recipe.symmetric}


def _expression(pattern: str) -> str:
    """A pattern with a star for the layer's number as a regular expression."""
    return f"^{re.escape(pattern)}$".replace(re.escape(".*."), r"\.\d+\.")


def _awq(layers: _Layers) -> dict[str, Any]:
    common = layers.common
    section: dict[str, Any] = {
        "quant_method": common.method.value,
        "bits": common.bits,
        "group_size": common.group_size,
        "zero_point": not common.symmetric,
        "version": "gemm",
        "modules_to_not_convert": list(layers.dense) or None,
    }
    return {**section, "lm_head": True} if layers.head else section


def _compressed(layers: _Layers) -> dict[str, Any]:
    kind = "float" if layers.method is Method.FP8 else "int"
    named = f"{kind}-quantized"
    common = {"num_bits": 8, "type": kind, "symmetric": True, "group_size": None, "block_structure": None}
    weights = {**common, "strategy": "channel", "dynamic": False, "observer": "minmax"}
    inputs = {**common, "strategy": "token", "dynamic": True, "observer": None}
    group = {
        "format": named,
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    groups = {"group_0": group}
    if layers.embedding:
        groups["group_1"] = {**group, "targets": ["Embedding"], "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": named,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [*layers.dense, *(() if layers.head else (layers.ends.head,))],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _alone(pattern: str, recipe: Recipe) -> dict[str, Any]:
    head, embedding = pattern == _UNTIED.head, pattern == _UNTIED.embedding
    return _SECTIONS[recipe.method](_Layers(recipe, {}, (), _UNTIED, head, embedding))


def _mixed(recipes: Mapping[str, Recipe | None]) -> dict[str, Any]:
    """A rule for each layer by its whole name, neighbours in a pattern where every layer agrees."""
    rules = []
    for pattern, recipe in _patterns(recipes).items():
        config = None if recipe is None else _alone(pattern, _kind(recipe))
        rules.append({"layers": pattern, "config": config})
    return {"quant_method": "mixed", "rules": rules}


_SECTIONS: Mapping[Method, Callable[[_Layers], dict[str, Any]]] = {
    Method.GPTQ: _gptq,
    Method.AWQ: _awq,
    Method.INT8: _compressed,
    Method.FP8: _compressed,
}

_INDEX = re.compile(r"\.\d+\.")


def _patterns(recipes: Mapping[str, Recipe | None]) -> dict[str, Recipe | None]:
    """Patterns with a star for the layer's number where all layers have the same, else whole names."""
    by_part: dict[str, set[Recipe | None]] = {}
    for name, recipe in recipes.items():
        by_part.setdefault(_INDEX.sub(".*.", name, count=1), set()).add(recipe)
    found: dict[str, Recipe | None] = {}
    for name, recipe in recipes.items():
        part = _INDEX.sub(".*.", name, count=1)
        found[part if len(by_part[part]) == 1 else name] = recipe
    return found
