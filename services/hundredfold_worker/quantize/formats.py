"""What config.json says of the weights, so that other readers know them: one format, or ``mixed``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hundredfold_worker.quantize.recipe import Method, Recipe

_CHANNELS = (Method.INT8, Method.SMOOTHQUANT, Method.FP8)
_HEAD = "lm_head"
AWQ_BITS = 4
"""The width of awq that every reader knows."""


def quantization_config(recipes: Mapping[str, Recipe | None]) -> dict[str, Any]:
    """The section for these layers: the format's own where all that are quantized share one."""
    kinds = _kinds(recipes)
    dense = [name for name, recipe in recipes.items() if recipe is None]
    return _section(kinds[0], dense) if len(kinds) == 1 else _mixed(recipes)


def sections_beside(recipes: Mapping[str, Recipe | None]) -> dict[str, dict[str, Any]]:
    """Files in which older readers look for the section, by name."""
    if [kind.method for kind in _kinds(recipes)] != [Method.GPTQ]:
        return {}
    return {"quantize_config.json": quantization_config(recipes)}


def known_readers(recipes: Mapping[str, Recipe | None]) -> str:
    """Who reads such a checkpoint."""
    kinds = _kinds(recipes)
    if len(kinds) > 1:
        return "hundredfold alone: it mixes methods"
    if kinds[0].method is Method.AWQ and kinds[0].bits != AWQ_BITS:
        return f"hundredfold and GPTQModel; transformers read {AWQ_BITS} bits of this format"
    return "hundredfold, transformers and others"


def _kinds(recipes: Mapping[str, Recipe | None]) -> list[Recipe]:
    """Every recipe that is read in its own way."""
    return list(dict.fromkeys(_kind(recipe) for recipe in recipes.values() if recipe is not None))


def _kind(recipe: Recipe) -> Recipe:
    """Recipes that are read alike are one."""
    return Recipe(Method.INT8) if recipe.method is Method.SMOOTHQUANT else recipe


def _section(recipe: Recipe, dense: list[str]) -> dict[str, Any]:
    if recipe.method is Method.GPTQ:
        return _gptq(recipe, dense)
    if recipe.method is Method.AWQ:
        return _awq(recipe, dense)
    return _compressed(recipe, dense)


def _gptq(recipe: Recipe, dense: list[str]) -> dict[str, Any]:
    section: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": recipe.bits,
        "group_size": recipe.group_size,
        "sym": recipe.symmetric,
        "desc_act": recipe.act_order,
        "checkpoint_format": "gptq",
        "format": "gptq",
        "pack_dtype": "int32",
        "lm_head": False,
        "meta": {"quantizer": ["hundredfold"]},
    }
    if dense:
        section["dynamic"] = {f"-:^{re.escape(name)}$": {} for name in dense}
    return section


def _awq(recipe: Recipe, dense: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": recipe.bits,
        "group_size": recipe.group_size,
        "zero_point": not recipe.symmetric,
        "version": "gemm",
        "modules_to_not_convert": dense or None,
    }


def _compressed(recipe: Recipe, dense: list[str]) -> dict[str, Any]:
    kind = "float" if recipe.method is Method.FP8 else "int"
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
    return {
        "quant_method": "compressed-tensors",
        "format": named,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [*dense, _HEAD],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _mixed(recipes: Mapping[str, Recipe | None]) -> dict[str, Any]:
    """A rule for each layer by its whole name, neighbours in a pattern where every layer agrees."""
    rules = []
    for pattern, recipe in _patterns(recipes).items():
        config = None if recipe is None else _section(recipe, [])
        rules.append({"layers": pattern, "config": config})
    return {"quant_method": "mixed", "rules": rules}


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
