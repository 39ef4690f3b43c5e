"""A GGUF file's tokenizer as files, for tools that find this through the entry point ``tokenizer-files``."""

from __future__ import annotations

import json
from typing import Any

from hundredfold.models import gguf_metadata, resolve
from hundredfold_tokenizer.vocabulary.description import TokenizerDescription
from hundredfold_tokenizer.vocabulary.errors import VocabularyError
from hundredfold_tokenizer.vocabulary.gguf import read_gguf


def tokenizer_files(model: str) -> dict[str, str]:
    """What a safetensors checkpoint has beside its weights for text, by file name.

    Raises:
        ModelError: The model cannot be found or read.
        VocabularyError: Its tokenizer cannot be used.
    """
    files = resolve(model)
    if files.container != "gguf":
        raise VocabularyError(f"{files.path} is no GGUF file; it has tokenizer files of its own")
    description = read_gguf(gguf_metadata(files.path))
    tokenizer = {**description.tokenizer, "post_processor": _post_processor(description)}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(description.add_bos),
        "add_eos_token": bool(description.add_eos),
        **description.names,
    }
    generation = {"bos_token_id": description.bos_id, "eos_token_id": sorted(description.eos_ids)}
    found = {
        "tokenizer.json": _dump(tokenizer, indent=None),
        "tokenizer_config.json": _dump(config),
        "generation_config.json": _dump({key: value for key, value in generation.items() if value}),
    }
    template = description.templates.get("default")
    if template is not None:
        found["chat_template.jinja"] = template
    return found


def _post_processor(description: TokenizerDescription) -> dict[str, Any] | None:
    """Puts BOS before a text, which other readers do only so."""
    name = description.names.get("bos_token")
    if not description.add_bos or name is None:
        return None
    begin = {"SpecialToken": {"id": name, "type_id": 0}}
    text, second = ({"Sequence": {"id": part, "type_id": 0}} for part in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, begin, second],
        "special_tokens": {name: {"id": name, "ids": [description.bos_id], "tokens": [name]}},
    }


def _dump(content: object, indent: int | None = 2) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
