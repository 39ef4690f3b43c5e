"""Opens a checkpoint: reads its headers and configuration, and maps its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hundredfold.models import (
    CheckpointError,
    GgufMetadata,
    ModelFiles,
    gguf_metadata,
    safetensors_header,
    shard_files,
)
from hundredfold.plugin import CheckpointInfo
from hundredfold_worker.model.checkpoint.config_json import ConfigJson
from hundredfold_worker.model.checkpoint.tensors import Entry, MappedFile, MappedTensors
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.quantization_section import KEYS, beside, merged


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint."""

    path: Path
    info: CheckpointInfo
    configuration: ConfigJson | GgufMetadata
    tensors: MappedTensors


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Open a checkpoint; no tensor is read.

    Raises:
        CheckpointError: a file is damaged.
        ModelLoadError: its configuration contradicts itself.
    """
    if files.container == "gguf":
        metadata = gguf_metadata(files.weights[0])
        return Checkpoint(files.path, CheckpointInfo("gguf", None), metadata, _gguf_tensors(metadata))
    if files.config is None:
        raise ModelLoadError(f"{files.path} has no config.json")
    config = ConfigJson.read(files.config)
    info = CheckpointInfo("safetensors", _quantization_section(config, files.root))
    return Checkpoint(files.path, info, config, _safetensors_tensors(files))


def _gguf_tensors(metadata: GgufMetadata) -> MappedTensors:
    file = MappedFile(metadata.path)
    return MappedTensors(
        {
            name: Entry(file, tensor.type_name, tensor.shape, tensor.offset, tensor.nbytes)
            for name, tensor in metadata.tensors.items()
        }
    )


def _safetensors_tensors(files: ModelFiles) -> MappedTensors:
    entries: dict[str, Entry] = {}
    listed = shard_files(files.index) if files.index is not None else None
    for path in files.weights:
        header = safetensors_header(path)
        if not header.tensors:
            continue
        file = MappedFile(path)
        for name, tensor in header.tensors.items():
            if listed is not None and listed.get(name) != path:
                continue  # a shard may hold what the index does not name, or names elsewhere
            entries[name] = Entry(file, tensor.dtype, tensor.shape, tensor.offset, tensor.nbytes)
    for name, path in (listed or {}).items():
        if name not in entries:
            raise CheckpointError(path, f"does not hold it, though {files.index} says so", name)
    return MappedTensors(entries)


def _quantization_section(config: ConfigJson, root: Path) -> Mapping[str, Any] | None:
    """The checkpoint's own words on its quantization, wherever they stand. Two that differ are an error."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for part, place in ((config, ""), (config.section("text_config"), "text_config.")):
        for key in KEYS:
            section = part.section(key) if part is not None else None
            if section is not None:
                found.append((f"{place}{key}", section.values))
    try:
        return merged(beside(root, found, lambda file: ConfigJson.read(file).values))
    except ValueError as error:
        raise ModelLoadError(f"{config.path}: {error}") from None
