"""The whole run: layer after layer read, calibrated, quantized, put on disk; then joined to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hundredfold.models import ModelError, fingerprint, resolve
from hundredfold.plugin.registry import PluginError, Registry, all_registries
from hundredfold_worker.model import ModelLoadError
from hundredfold_worker.quantize.beside import write_beside
from hundredfold_worker.quantize.calibration import Calibration, calibration
from hundredfold_worker.quantize.ends import EndsQuantizer, check_ends
from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.formats import known_readers, quantization_config, sections_beside
from hundredfold_worker.quantize.forward import Calibrator
from hundredfold_worker.quantize.layer import LayerQuantizer
from hundredfold_worker.quantize.pieces import join_pieces, write_piece
from hundredfold_worker.quantize.progress import LayerError, WorkFolder
from hundredfold_worker.quantize.recipe import Recipe, Rule, assign
from hundredfold_worker.quantize.rounders import ROUNDERS
from hundredfold_worker.quantize.source import Source, open_source

VERSION = 1
"""Of the algorithms: a run that another version began is not gone on with."""

Progress = Callable[[str, int, int], None]
"""Called with what is done now, how many layers are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for."""

    model: str
    output: Path
    otherwise: Recipe | None
    """For layers that no rule matches."""
    rules: tuple[Rule, ...]
    text: Path | None
    samples: int
    window: int
    num_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was made."""

    output: Path
    model: str
    source_format: str
    config: Mapping[str, Any]
    readers: str
    """Who reads it."""
    calibration: Calibration | None
    source_bytes: int
    bytes: int
    errors: tuple[LayerError, ...]
    """In the order of the model."""
    resumed_at: int
    """Layers that an earlier run had finished."""


def quantize(plan: Plan, progress: Progress) -> Outcome:
    """Make the checkpoint. Raises ``QuantizeError``; what is finished by then is taken up by the next run."""
    try:
        with torch.inference_mode():
            return _quantize(plan, progress)
    except (ModelError, ModelLoadError, PluginError) as error:
        raise QuantizeError(str(error)) from error
    except OSError as error:
        raise QuantizeError(f"{plan.model} to {plan.output}: {error}") from error


def _quantize(plan: Plan, progress: Progress) -> Outcome:
    if plan.num_threads is not None:
        torch.set_num_threads(plan.num_threads)
    progress("open", 0, 0)
    files = resolve(plan.model)
    registries = all_registries()
    source = open_source(files, registries)
    recipes = assign(source.linear_names(), source.ends, plan.rules, plan.otherwise)
    _check_shapes(source, recipes)
    text = None
    if any(recipe is not None and ROUNDERS[recipe.method].calibrates for recipe in recipes.values()):
        window = min(plan.window, source.description.max_position)
        text = calibration(plan.model, plan.text, plan.samples, window)
    folder = WorkFolder(plan.output, _asked(fingerprint(files), recipes, text))
    resumed_at = folder.done
    calibrator, hidden = _calibration(source, text, folder, registries)
    _layers(source, recipes, calibrator, hidden, folder, progress)
    count = source.description.num_layers
    progress("output layer", count, count)
    ends = EndsQuantizer(source, recipes, calibrator).quantize(hidden)
    progress("write", count, count)
    write_piece(folder.ends, ends.tensors)
    written = join_pieces([folder.ends, *map(folder.piece, range(count))], plan.output)
    config = quantization_config(recipes, source.ends)
    whole = {**source.config, "tie_word_embeddings": ends.tied, "quantization_config": config}
    sections = {**sections_beside(config), "config.json": whole}
    write_beside(files, plan.model, plan.output, sections)
    folder.remove()
    return Outcome(
        output=plan.output,
        model=plan.model,
        source_format=source.format,
        config=config,
        readers=known_readers(recipes, source.ends),
        calibration=text,
        source_bytes=sum(path.stat().st_size for path in files.weights),
        bytes=sum(path.stat().st_size for path in written),
        errors=(*folder.errors, *ends.errors),
        resumed_at=resumed_at,
    )


def _calibration(
    source: Source, text: Calibration | None, folder: WorkFolder, registries: Mapping[str, Registry]
) -> tuple[Calibrator | None, list[Tensor]]:
    """What runs layers, and what enters the first that is not done; nothing without a text."""
    if text is None:
        return None, []
    longest = max(map(len, text.windows))
    calibrator = Calibrator(source.description, source.names.norm_offset, longest, registries)
    return calibrator, folder.hidden() if folder.done else _embedded(source, calibrator, text)


def _layers(
    source: Source,
    recipes: Mapping[str, Recipe | None],
    calibrator: Calibrator | None,
    hidden: list[Tensor],
    folder: WorkFolder,
    progress: Progress,
) -> None:
    count = source.description.num_layers
    quantizer = LayerQuantizer(source, recipes, calibrator)
    for index in range(folder.done, count):

        def tell(what: str, index: int = index) -> None:
            progress(f"layer {index}: {what}", index, count)

        tensors, errors = quantizer.quantize(index, hidden, tell)
        folder.finish_layer(tensors, hidden, errors)
        progress(f"layer {index}", index + 1, count)


def _embedded(source: Source, calibrator: Calibrator, text: Calibration) -> list[Tensor]:
    table = source.embedding()
    return [calibrator.embed(table, ids) for ids in text.windows]


def _check_shapes(source: Source, recipes: Mapping[str, Recipe | None]) -> None:
    """Before anything is computed: every layer can be written as asked."""
    check_ends(source, recipes)
    for index in range(source.description.num_layers):
        for name, shape in source.shapes(index).items():
            recipe = recipes[name]
            reason = "" if recipe is None else ROUNDERS[recipe.method].refuses(shape, recipe)
            if reason:
                raise QuantizeError(
                    f"layer '{name}' cannot be {recipe}: {reason}. Other layers' recipe stays with "
                    f"--rule '{name.replace(f'.{index}.', '.*.', 1)}=none' or another for this one"
                )


def _asked(digest: str, recipes: Mapping[str, Recipe | None], text: Calibration | None) -> dict[str, Any]:
    """Everything that decides the bytes of the result."""
    return {
        "version": VERSION,
        "model": digest,
        "layers": {name: str(recipe) for name, recipe in recipes.items()},
        "calibration": None if text is None else text.digest,
    }
