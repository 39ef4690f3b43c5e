"""Reads a tokenizer out of tokenizer.json and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hundredfold.models import ModelFiles
from hundredfold_tokenizer.vocabulary.description import Json, TokenizerDescription, added_token
from hundredfold_tokenizer.vocabulary.errors import VocabularyError

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Largest JSON file that is read."""

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer_json(files: ModelFiles) -> TokenizerDescription:
    """The tokenizer of a directory.

    Raises:
        VocabularyError: There is no tokenizer.json, or a file is not what it should be.
    """
    if files.tokenizer is None:
        raise VocabularyError(f"{files.root} has no tokenizer.json; other tokenizer files are not read")
    tokenizer = read_json(files.tokenizer)
    config = read_json(files.tokenizer_config) if files.tokenizer_config else {}
    _complete(tokenizer, config, files.tokenizer)
    names = _names(config)
    positions = ids_by_text(tokenizer)
    eos = positions.get(names.get("eos_token", ""))
    return TokenizerDescription(
        tokenizer=tokenizer,
        bos_id=positions.get(names.get("bos_token", "")),
        eos_ids=frozenset() if eos is None else frozenset({eos}),
        add_bos=_flag(config, "add_bos_token"),
        add_eos=_flag(config, "add_eos_token"),
        names=names,
        templates=_templates(files, config),
    )


def ids_by_text(tokenizer: Json) -> dict[str, int]:
    """Every token's id by its text, added tokens included."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found: dict[str, int] = {}
    if isinstance(vocab, dict):
        found.update(vocab)
    elif isinstance(vocab, list):
        found.update({piece: index for index, (piece, _) in enumerate(vocab)})
    found.update({entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens") or ()})
    return found


def read_json(path: Path) -> Json:
    """A JSON object.

    Raises:
        VocabularyError: The file cannot be read, is too large, or holds something else.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise VocabularyError(f"{path} has {size} bytes; the limit is {MAX_FILE_BYTES}")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise VocabularyError(f"{path} holds no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise VocabularyError(f"{path} holds a JSON {type(content).__name__}, not an object")
    return content


def _complete(tokenizer: Json, config: Json, path: Path) -> None:
    """Check the parts that we read ourselves, and add the special tokens that only the config names."""
    added = tokenizer.setdefault("added_tokens", [])
    well_formed = isinstance(added, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("content"), str) and isinstance(entry.get("id"), int)
        for entry in added
    )
    if not well_formed or not isinstance(tokenizer.get("model"), dict):
        raise VocabularyError(f"{path}: model or added_tokens is missing or malformed")
    # Whatever was set for training must not cut or pad prompts.
    tokenizer["truncation"] = tokenizer["padding"] = None
    try:
        positions = ids_by_text(tokenizer)
    except (TypeError, ValueError):
        raise VocabularyError(f"{path}: model.vocab is malformed") from None
    known = {entry["content"] for entry in added}
    declared = config.get("added_tokens_decoder")
    for key, entry in sorted(declared.items()) if isinstance(declared, dict) else ():
        content = _text(entry)
        if (
            content
            and content not in known
            and key.isdigit()
            and positions.get(content, int(key)) == int(key)
        ):
            added.append(added_token(int(key), content, special=bool(entry.get("special"))))
            known.add(content)
    for content in _names(config).values():
        if content not in known and content in positions:
            added.append(added_token(positions[content], content, special=True))
            known.add(content)
    added.sort(key=lambda entry: entry["id"])


def _names(config: Json) -> dict[str, str]:
    texts = {name: _text(config.get(name)) for name in _NAMES}
    return {name: text for name, text in texts.items() if text}


def _text(token: Any) -> str | None:
    """A token is written as a string, or as an object with its text in ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _flag(config: Json, name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


def _templates(files: ModelFiles, config: Json) -> Mapping[str, str]:
    if files.chat_template is not None:
        try:
            return {"default": files.chat_template.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise VocabularyError(f"{files.chat_template} cannot be read: {error}") from None
    stated = config.get("chat_template")
    if isinstance(stated, str):
        return {"default": stated}
    if isinstance(stated, list):
        return {
            entry["name"]: entry["template"]
            for entry in stated
            if isinstance(entry, dict)
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("template"), str)
        }
    return {}
