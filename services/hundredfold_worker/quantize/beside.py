"""The files beside the weights: configuration, tokenizer, template; taken over or made from a GGUF header."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from hundredfold.errors import StartError
from hundredfold.models import ModelFiles
from hundredfold_worker.quantize.errors import QuantizeError

NOT_TAKEN = ("config.json", "quantize_config.json", "quant_config.json", "recipe.yaml")
"""What is written anew, or says how the source was quantized."""

TAKEN = (".json", ".jinja", ".txt", ".model", ".md")
"""Endings of the files that are taken over: tokenizer, templates, generation_config, card and licence."""

MOST_BYTES = 256 << 20

TokenizerFiles = Callable[[str], Mapping[str, str]]


def write_beside(
    files: ModelFiles, model: str, output: Path, sections: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write everything but the weights; ``sections`` are JSON files by name, config.json the last.

    Raises ``QuantizeError`` when a tokenizer cannot be made.
    """
    if files.container == "safetensors":
        for path in sorted(files.root.iterdir()):
            if path.is_file() and _is_taken(path):
                shutil.copyfile(path, output / path.name)
    else:
        for name, text in _tokenizer_files(model).items():
            (output / name).write_text(text, encoding="utf-8")
    for name, content in sections.items():
        _write_json(output / name, content)


def _is_taken(path: Path) -> bool:
    if path.name in NOT_TAKEN or path.name.endswith(".index.json") or path.stat().st_size > MOST_BYTES:
        return False
    return path.suffix in TAKEN or path.name.lower().startswith(("license", "licence", "notice"))


def _tokenizer_files(model: str) -> Mapping[str, str]:
    found = list(entry_points(group="hundredfold.tools", name="tokenizer-files"))
    if not found:
        raise StartError("no installed package offers the tool 'tokenizer-files': install hundredfold again")
    try:
        return cast(TokenizerFiles, found[0].load())(model)
    except ValueError as error:
        raise QuantizeError(f"the tokenizer of {model} cannot be written as files: {error}") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
