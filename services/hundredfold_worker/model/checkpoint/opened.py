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

OF_NO_ACCOUNT = {"model_name_or_path", "model_file_base_name"}
"""Keys of quantization sections that say where a file once lay."""


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
    text = config.section("text_config")
    for part, place in ((config, "quantization_config"), (text, "text_config.quantization_config")):
        section = part.section("quantization_config") if part is not None else None
        if section is not None:
            found.append((place, section.values))
    for beside in (root / "quantize_config.json", root / "quant_config.json"):
        # the second is an older one's, in words of its own: asked where nothing else speaks
        if beside.is_file() and not (found and beside.name == "quant_config.json"):
            found.append((beside.name, ConfigJson.read(beside).values))
    if not found:
        return None
    first_place, first = found[0]
    for place, other in found[1:]:
        both = (other.keys() & first.keys()) - OF_NO_ACCOUNT
        differing = sorted(key for key in both if other[key] != first[key])
        if differing:
            raise ModelLoadError(f"{config.path}: {first_place} and {place} differ in '{differing[0]}'")
        first = {**first, **other}  # a file of its own keeps the order of rules, which config.json sorts
    return first
