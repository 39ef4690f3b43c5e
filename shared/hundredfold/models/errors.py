"""Errors about models on disk."""

from __future__ import annotations

from pathlib import Path


class ModelError(Exception):
    """A model cannot be used; the message says which, why and what to do."""


class ModelNotFound(ModelError):
    """Nothing on this machine goes by that name."""


class CheckpointError(ModelError):
    """A file of a checkpoint is damaged, hostile or of a kind that is not read.

    Attributes:
        file: The file at fault.
        key: The entry in it, or empty for the file as a whole.
    """

    def __init__(self, file: Path, problem: str, key: str = "") -> None:
        self.file = file
        self.key = key
        shown = f"{key[:200]!r} " if key else ""  # repr: names in hostile files can hold control characters
        super().__init__(f"{file}: {shown}{problem}")
