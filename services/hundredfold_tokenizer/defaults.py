"""What the checkpoint itself says about sampling and about where an answer ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hundredfold.models import GgufMetadata, ModelFiles
from hundredfold.telemetry import get_logger
from hundredfold_tokenizer.limits import RANGES, UINT32
from hundredfold_tokenizer.vocabulary.tokenizer_json import read_json

log = get_logger(__name__)

_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
_GGUF_FIELDS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_WHOLE = ("top_k", "max_tokens")


@dataclass(frozen=True, slots=True)
class CheckpointDefaults:
    """Defaults that come with the model.

    Attributes:
        sampling: Value by name of the sampling field.
        eos_ids: Every id that the model's files call an end of sequence or of turn.
        max_model_len: The context length that the model was made for, if stated.
        vocab_size: Rows of its output layer, if stated.
        architecture: Its name in the config.
    """

    sampling: Mapping[str, float] = field(default_factory=dict)
    eos_ids: frozenset[int] = frozenset()
    max_model_len: int | None = None
    vocab_size: int | None = None
    architecture: str = ""


def checkpoint_defaults(
    files: ModelFiles, metadata: GgufMetadata | None, tokenizer_eos: frozenset[int]
) -> CheckpointDefaults:
    """Merge generation_config, config and tokenizer; ``tokenizer_eos`` are the ends that the tokenizer names.

    Raises:
        VocabularyError: A JSON file is damaged.
        CheckpointError: A GGUF key has a value of the wrong type.
    """
    generation = read_json(files.generation_config) if files.generation_config else {}
    config = read_json(files.config) if files.config else {}
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    eos = tokenizer_eos | ids_of(generation.get("eos_token_id")) | ids_of(text.get("eos_token_id"))
    sampling = _sampling(
        {ours: generation[theirs] for theirs, ours in _FIELDS.items() if theirs in generation}
    )
    if generation.get("do_sample") is False:
        sampling = {
            name: value for name, value in sampling.items() if name in ("max_tokens", "repetition_penalty")
        }
        sampling["temperature"] = 0.0
    architectures = text.get("architectures")
    found = CheckpointDefaults(
        sampling=sampling,
        eos_ids=eos,
        max_model_len=_positive(text.get("max_position_embeddings")),
        vocab_size=_positive(text.get("vocab_size")),
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
    )
    return found if metadata is None or files.config is not None else _from_gguf(metadata, found)


def _from_gguf(metadata: GgufMetadata, found: CheckpointDefaults) -> CheckpointDefaults:
    architecture = metadata.string("general.architecture") or ""
    tokens = metadata.strings("tokenizer.ggml.tokens")
    stated = {ours: metadata.number(key) for key, ours in _GGUF_FIELDS.items()}
    return CheckpointDefaults(
        sampling=_sampling({name: value for name, value in stated.items() if value is not None})
        | dict(found.sampling),
        eos_ids=found.eos_ids,
        max_model_len=_positive(metadata.integer(f"{architecture}.context_length")),
        vocab_size=_positive(metadata.integer(f"{architecture}.vocab_size"))
        or (len(tokens) if tokens else None),
        architecture=architecture,
    )


def _sampling(stated: Mapping[str, Any]) -> dict[str, float]:
    """The values that a request could also have asked for; others are of no use and are named in the log."""
    values: dict[str, float] = {}
    for name, value in stated.items():
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        limit = UINT32 if name in _WHOLE else RANGES[name]
        if number and limit.holds(value) and (name not in _WHOLE or value == int(value)):
            values[name] = int(value) if name in _WHOLE else float(value)
        else:
            log.warning("generation_config has a value of no use", field=name, value=value, limit=str(limit))
    if values.get("max_tokens") == 0:
        del values["max_tokens"]
    return values


def ids_of(value: Any) -> frozenset[int]:
    """Ids of a number or a list of numbers; what is none counts for nothing."""
    found = value if isinstance(value, list) else [value]
    return frozenset(
        item for item in found if isinstance(item, int) and not isinstance(item, bool) and item >= 0
    )


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
