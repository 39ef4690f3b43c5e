"""The model half of the worker: checkpoint in, logits out. See README.md beside this file."""

from hundredfold_worker.model.description import ModelDescription
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.load import load_model
from hundredfold_worker.model.loaded import (
    CachePlanner,
    LoadedModel,
    LoadOptions,
    PagedCache,
    RuntimeReport,
    Selection,
    nothing,
)

__all__ = [
    "CachePlanner",
    "LoadOptions",
    "LoadedModel",
    "ModelDescription",
    "ModelLoadError",
    "PagedCache",
    "RuntimeReport",
    "Selection",
    "load_model",
    "nothing",
]
