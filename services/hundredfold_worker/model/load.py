"""Loading: from a checkpoint's files to a model that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hundredfold_worker.model.loaded import LoadedModel, LoadOptions

if TYPE_CHECKING:
    from hundredfold.models import ModelFiles
    from hundredfold.plugin.registry import Registry


def load_model(files: ModelFiles, options: LoadOptions, registries: Mapping[str, Registry]) -> LoadedModel:
    """Load ``files`` layer by layer; at most the weights and one layer are in memory at any time.

    ``registries`` holds one registry for each plugin group, as ``all_registries`` gives them.

    Called on the thread that will run the model.

    Raises:
        ModelLoadError: the checkpoint or the options cannot be served.
    """
    raise NotImplementedError
