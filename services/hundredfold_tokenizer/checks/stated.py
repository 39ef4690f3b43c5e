"""What each of a checkpoint's files says by itself; the door only wants to know what all say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hundredfold.models import GgufMetadata, ModelFiles
from hundredfold_tokenizer.defaults import checkpoint_defaults, ids_of
from hundredfold_tokenizer.vocabulary import Vocabulary
from hundredfold_tokenizer.vocabulary.tokenizer_json import read_json


@dataclass(frozen=True, slots=True)
class Stated:
    """Files, each by itself."""

    ends: Mapping[str, frozenset[int]]
    """Ids of ends by the file that names them; a file that names none is not there."""
    sampling: Mapping[str, float]
    rows: int | None
    """Ids that the model's tables have."""
    merged: frozenset[int]
    """The ends that the door uses."""


def read_stated(files: ModelFiles, metadata: GgufMetadata | None, vocabulary: Vocabulary) -> Stated:
    """Read them. Raises ``VocabularyError`` or ``CheckpointError`` for damaged files."""
    merged = checkpoint_defaults(files, metadata, vocabulary.eos_ids)
    ends = {"tokenizer": vocabulary.eos_ids}
    for path in (files.config, files.generation_config):
        if path is not None:
            content: dict[str, Any] = read_json(path)
            inner = content.get("text_config")
            text = {**content, **inner} if isinstance(inner, dict) else content
            ends[path.name] = ids_of(text.get("eos_token_id"))
    rows = merged.vocab_size
    if metadata is not None and "token_embd.weight" in metadata.tensors:
        rows = metadata.tensors["token_embd.weight"].shape[0]
    return Stated({name: ids for name, ids in ends.items() if ids}, merged.sampling, rows, merged.eos_ids)
