"""Finds a model's headers: a catalog name, a directory, a GGUF file, or a bare config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hundredfold.errors import StartError
from hundredfold.models import ModelError, gguf_metadata, resolve, safetensors_header
from hundredfold.plugin import LayerRole, TensorHeader
from hundredfold_worker.estimate import from_config, from_gguf
from hundredfold_worker.estimate.config_values import Config
from hundredfold_worker.estimate.formats import Checkpoint, stored
from hundredfold_worker.estimate.forms import floats
from hundredfold_worker.estimate.parts import Chooser, Outline, layer_of
from hundredfold_worker.quantization_section import beside, merged


@dataclass(frozen=True, slots=True)
class Source:
    """A model that is known by its headers."""

    name: str
    outline: Outline
    format: str
    """Of the checkpoint."""
    stored: Chooser
    """The form of each part in the checkpoint."""
    checkpoint: Checkpoint
    file_bytes: Mapping[int | None, int] | None
    """Exact bytes of the tensors by layer, ``None`` for what stands in none; no files: ``None``."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tensors, exact where there are files."""
        if self.file_bytes is not None:
            return sum(self.file_bytes.values())
        outline = self.outline
        whole = sum(
            self.stored(part).stored_bytes * part.copies
            for part in outline.parts
            if not (outline.tied_head and part.role is LayerRole.HEAD)
        )
        return whole + outline.vectors * 2


def find(model: str) -> Source:
    """Read headers. Raises ``StartError``: nothing is called so, or its headers cannot be read."""
    try:
        path = Path(model).expanduser()
        bare = path / "config.json" if path.is_dir() else path
        if bare.suffix == ".json" and bare.is_file() and not _has_weights(bare.parent, path):
            return _from_config(bare, bare.parent.resolve().name, None)
        files = resolve(model)
        if files.container == "gguf":
            metadata = gguf_metadata(files.weights[0])
            outline = from_gguf.outline_of(metadata)
            headers = {
                name: TensorHeader(tensor.type_name, tensor.shape, tensor.nbytes)
                for name, tensor in metadata.tensors.items()
            }
            table = from_gguf.EMBEDDING if outline.tied_head else ""
            return _source(files.name, outline, Checkpoint("gguf", None, floats("F16"), headers, table))
        if files.config is None:
            raise StartError(f"{files.root} has no config.json")
        return _from_config(files.config, files.name, files.weights)
    except ModelError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{model} cannot be read: {error}") from error


def _has_weights(directory: Path, asked: Path) -> bool:
    """Whether a directory that was asked for holds weights, whose headers then count."""
    return asked.is_dir() and any(
        entry.suffix in (".safetensors", ".gguf", ".bin", ".pt") or entry.name.endswith(".index.json")
        for entry in directory.iterdir()
    )


def _from_config(path: Path, name: str, weights: tuple[Path, ...] | None) -> Source:
    config = Config.read(path)
    outline = from_config.outline_of(config)
    named = config.text("torch_dtype") or config.text("dtype") or "bfloat16"
    try:
        plain = floats(named)
    except KeyError:
        raise StartError(f"{config.path}: 'torch_dtype' is {named!r}, no float type") from None
    headers = None
    if weights is not None:
        headers = {
            tensor_name: TensorHeader(tensor.dtype, tensor.shape, tensor.nbytes)
            for file in weights
            for tensor_name, tensor in safetensors_header(file).tensors.items()
        }
    table = from_config.EMBEDDING if outline.tied_head else ""
    said = config.sections
    if weights is not None:
        said = beside(path.parent, said, lambda file: Config.read(file).values)
    try:
        section = merged(said)
    except ValueError as error:
        raise StartError(f"{path}: {error}") from None
    return _source(name, outline, Checkpoint("safetensors", section, plain, headers, table))


def _source(name: str, outline: Outline, checkpoint: Checkpoint) -> Source:
    method, chooser = stored(checkpoint)
    if checkpoint.headers is None:
        return Source(name, outline, method, chooser, checkpoint, None)
    sizes: dict[int | None, int] = {}
    for tensor, header in checkpoint.headers.items():
        sizes[layer_of(tensor)] = sizes.get(layer_of(tensor), 0) + header.nbytes
    return Source(name, outline, method, chooser, checkpoint, sizes)
