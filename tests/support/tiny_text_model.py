"""Checkpoint directories that hold a tokenizer and next to nothing else: all that the door reads of a
model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from support.tiny_model import CHAT_TEMPLATE, write_tokenizer

VOCAB_SIZE = 512
SPM_TEXT = "the quick brown fox says hello world again and again because words make sentences"


def byte_level_model(directory: Path, **files: Any) -> Path:
    """A byte-level BPE of 512 ids; ``<|endoftext|>`` 0, ``<|im_start|>`` 1, ``<|im_end|>`` 2 (EOS)."""
    _checkpoint(directory, files, eos=2)
    write_tokenizer(directory)
    _overrule(directory, files)
    return directory


def spm_model(directory: Path, **files: Any) -> Path:
    """A SentencePiece-like BPE with byte fallback: ``<unk>`` 0, ``<s>`` 1 (BOS), ``</s>`` 2 (EOS), bytes
    3-258.
    """
    _checkpoint(directory, files, eos=2)
    (directory / "tokenizer.json").write_text(json.dumps(spm_tokenizer_json()))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    _overrule(directory, files)
    return directory


def spm_pieces() -> list[str]:
    """The vocabulary of ``spm_model``, in the order of ids."""
    letters = sorted({*SPM_TEXT, *"ABCDEFGHIJKLMNOPQRSTUVWXYZé가😀.:,'!?"} - {" "})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    for word in SPM_TEXT.split():
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
        pieces.append("▁" + word) if "▁" + word not in pieces else None
    pieces += ["▁Hello", "▁world's"]
    return list(dict.fromkeys(pieces))


def spm_tokenizer_json() -> dict[str, Any]:
    """The tokenizer.json of ``spm_model``, as Llama's was converted: a space before every text, bytes for
    the rest.
    """
    pieces = spm_pieces()
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [
        [piece[:cut], piece[cut:]]
        for piece in pieces[259:]
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, pieces[index]) for index in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _added(index: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": True}


def _checkpoint(directory: Path, files: dict[str, Any], *, eos: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 2048,
        "eos_token_id": eos,
    }
    (directory / "config.json").write_text(json.dumps(config | files.get("config", {})))
    save_file({"lm_head.weight": np.zeros((1, 1), dtype=np.float32)}, directory / "model.safetensors")
    if "generation_config" in files:
        (directory / "generation_config.json").write_text(json.dumps(files["generation_config"]))


def _overrule(directory: Path, files: dict[str, Any]) -> None:
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | files.get("tokenizer_config", {})
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
