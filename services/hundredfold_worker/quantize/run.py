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
    recipes = assign(source.linear_names(), plan.rules, plan.otherwise)
    _check_shapes(source, recipes)
    text = None
    if any(recipe is not None and ROUNDERS[recipe.method].calibrates for recipe in recipes.values()):
        window = min(plan.window, source.description.max_position)
        text = calibration(plan.model, plan.text, plan.samples, window)
    folder = WorkFolder(plan.output, _asked(fingerprint(files), recipes, text))
    resumed_at = folder.done
    _layers(source, recipes, text, folder, registries, progress)
    progress("write", source.description.num_layers, source.description.num_layers)
    write_piece(folder.ends, dict(source.ends()))
    pieces = [folder.ends, *(folder.piece(index) for index in range(source.description.num_layers))]
    written = join_pieces(pieces, plan.output)
    config = quantization_config(recipes)
    sections = {**sections_beside(recipes), "config.json": {**source.config, "quantization_config": config}}
    write_beside(files, plan.model, plan.output, sections)
    folder.remove()
    return Outcome(
        output=plan.output,
        model=plan.model,
        source_format=source.format,
        config=config,
        readers=known_readers(recipes),
        calibration=text,
        source_bytes=sum(path.stat().st_size for path in files.weights),
        bytes=sum(path.stat().st_size for path in written),
        errors=tuple(folder.errors),
        resumed_at=resumed_at,
    )


def _layers(
    source: Source,
    recipes: Mapping[str, Recipe | None],
    text: Calibration | None,
    folder: WorkFolder,
    registries: Mapping[str, Registry],
    progress: Progress,
) -> None:
    count = source.description.num_layers
    calibrator, hidden = None, []
    if text is not None and folder.done < count:
        longest = max(map(len, text.windows))
        calibrator = Calibrator(source.description, source.names.norm_offset, longest, registries)
        hidden = folder.hidden() if folder.done else _embedded(source, calibrator, text)
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
