"""Writes small GGUF files whose metadata describes a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from hundredfold_tokenizer.vocabulary.byte_alphabet import BYTE_OF
from support.tiny_text_model import spm_pieces

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

BPE_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ 1", "1 2", "Ġ Ġ")


def bpe_keys(*, pre: str | None = "smollm", **changes: Any) -> dict[str, Any]:
    """Keys of a byte-level tokenizer: three control tokens, one user-defined, 256 bytes, a few merges."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", *BYTE_OF]
    tokens += [merge.replace(" ", "") for merge in BPE_MERGES]
    kinds = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(tokens) - 4)
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": kinds,
        "merges": list(BPE_MERGES),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }
    return keys | changes


def spm_keys(**changes: Any) -> dict[str, Any]:
    """Keys of a SentencePiece tokenizer: the pieces of ``spm_model``, earlier ones with better scores."""
    pieces = spm_pieces()
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(pieces) - 259)
    keys = {
        "model": "llama",
        "tokens": pieces,
        "scores": [0.0] * 259 + [-float(index) for index in range(len(pieces) - 259)],
        "token_type": kinds,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return keys | changes


def write_gguf(
    path: Path,
    tokenizer: Mapping[str, Any],
    *,
    architecture: str = "llama",
    other: Mapping[str, Any] | None = None,
) -> Path:
    """Write a file with these ``tokenizer.ggml.`` keys, further keys by full name, and one small tensor."""
    writer = GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.context_length", 2048)
    for name, value in {f"tokenizer.ggml.{k}": v for k, v in tokenizer.items()}.items():
        _add(writer, name, value)
    for name, value in (other or {}).items():
        _add(writer, name, value)
    writer.add_tensor("output.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, Sequence):
        writer.add_array(name, value)
