"""A GGUF file's tokenizer as files: our own reader and the tokenizers library get the same ids from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from hundredfold.models import ModelFiles, resolve
from hundredfold_tokenizer.export import tokenizer_files
from hundredfold_tokenizer.vocabulary import load_vocabulary
from hundredfold_tokenizer.vocabulary.errors import VocabularyError
from support.tiny_gguf import bpe_keys, spm_keys, write_gguf
from support.tiny_text_model import byte_level_model

TEXTS = ("hello world", "  two  spaces 12\n", "né 你好 \U0001f600", "<|im_start|>", "")


def written(directory: Path, files: dict[str, str]) -> ModelFiles:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    template = directory / "chat_template.jinja"
    return ModelFiles(
        name="written",
        root=directory,
        container="safetensors",
        weights=(),
        tokenizer=directory / "tokenizer.json",
        tokenizer_config=directory / "tokenizer_config.json",
        generation_config=directory / "generation_config.json",
        chat_template=template if template.is_file() else None,
    )


@pytest.mark.parametrize(
    "keys", [bpe_keys(), bpe_keys(add_bos_token=True), spm_keys()], ids=["bytes", "bytes-bos", "pieces"]
)
def test_the_files_encode_as_the_gguf_does(keys: dict[str, Any], tmp_path: Path) -> None:
    template = {"tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    path = write_gguf(tmp_path / "model.gguf", keys, other=template)
    files = written(tmp_path / "out", tokenizer_files(str(path)))
    own, again = load_vocabulary(resolve(str(path))), load_vocabulary(files)
    library = Tokenizer.from_file(str(files.tokenizer))
    for text in TEXTS:
        ids = own.encode_text(text)
        assert again.encode_text(text) == ids
        assert again.encode_text(text, parse_special=True) == own.encode_text(text, parse_special=True)
        if "<" not in text:  # the library always reads special tokens
            assert library.encode(text).ids == ids
    assert (again.bos_id, again.names, again.templates) == (own.bos_id, own.names, own.templates)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == sorted(own.eos_ids)


def test_a_directory_has_files_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="has tokenizer files of its own"):
        tokenizer_files(str(byte_level_model(tmp_path)))
