"""Where the parts of one checkpoint lie on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Container = Literal["gguf", "safetensors"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one checkpoint. Paths that are None are not there.

    Attributes:
        name: What clients call the model: catalog name, hub id, or name of the directory or file.
        root: The directory that holds it.
        container: How its weights are stored.
        weights: The weight files: one GGUF file, or every safetensors shard in name order.
        index: model.safetensors.index.json of a sharded checkpoint.
        config: config.json; always there with safetensors.
        tokenizer: tokenizer.json; a GGUF file holds its own tokenizer.
        tokenizer_config: tokenizer_config.json.
        generation_config: generation_config.json.
        chat_template: chat_template.jinja.
    """

    name: str
    root: Path
    container: Container
    weights: tuple[Path, ...]
    index: Path | None = None
    config: Path | None = None
    tokenizer: Path | None = None
    tokenizer_config: Path | None = None
    generation_config: Path | None = None
    chat_template: Path | None = None

    @property
    def path(self) -> Path:
        """The GGUF file, or the directory of a safetensors checkpoint."""
        return self.weights[0] if self.container == "gguf" else self.root
