"""Which form each matrix has in a checkpoint: whoever reads the checkpoint is asked, and says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from hundredfold.errors import StartError
from hundredfold.plugin import (
    CheckpointInfo,
    LayerOutline,
    LayerRole,
    NothingFits,
    QuantizationMethod,
    QuantizationPlugin,
    Reasons,
    StatingForms,
    TensorHeader,
    WeightForm,
    choose,
)
from hundredfold.plugin.registry import PluginError, Registry
from hundredfold_worker.estimate.forms import Floats, floats
from hundredfold_worker.estimate.parts import Chooser, Part

GROUP = "hundredfold.quantization"
Headers = Mapping[str, TensorHeader]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known of a checkpoint's tensors without reading one."""

    container: str
    section: Mapping[str, Any] | None
    """The words on its quantization."""
    floats: Floats
    """Of layers that are not quantized."""
    headers: Headers | None
    """``None`` where there are no files."""
    table: str = ""
    """The embedding's name where the output layer is the same tensor."""

    @property
    def info(self) -> CheckpointInfo:
        """As formats are asked."""
        return CheckpointInfo(self.container, self.section, Installed())


class Installed:
    """Every format that is installed, for one that hands layers on to others."""

    def bind(self, part: CheckpointInfo) -> QuantizationMethod:
        """See ``Formats``."""
        return _bind(part, None)[1]


def stored(checkpoint: Checkpoint, asked: str | None = None) -> tuple[str, Chooser]:
    """The format's name, and each part's form as stored. Raises ``StartError`` with everybody's reasons."""
    try:
        name, method = _bind(checkpoint.info, asked)
    except ValueError as error:
        method_of = (checkpoint.section or {}).get("quant_method")
        told = f"quant_method {str(method_of)[:80]!r}: " if method_of is not None else ""
        raise StartError(f"{told}{error}") from None
    if not isinstance(method, StatingForms):
        raise StartError(
            f"format '{name}' reads this checkpoint, but does not say what it makes of a layer (it has no "
            "method 'form'): nothing can be told before it is loaded"
        )

    @cache
    def choose_form(part: Part) -> WeightForm:
        tied = part.role is LayerRole.HEAD and checkpoint.table
        layer = LayerOutline(
            checkpoint.table if tied else part.name,
            (part.rows, part.columns),
            LayerRole.TABLE if tied else part.role,
            checkpoint.headers,
            checkpoint.floats.encoding,
        )
        form = asking(name, lambda: method.form(layer) if method.covers(layer.request) else None)
        return _plain(checkpoint, layer).form(part) if form is None else form

    plain = checkpoint.section is None and checkpoint.container != "gguf"
    return checkpoint.floats.label if plain else name, choose_form


def asking(name: str, ask: Callable[[], T]) -> T:
    """What a plugin answers. Raises ``StartError`` also for what it did not mean to raise."""
    try:
        return ask()
    except ValueError as error:
        raise StartError(f"'{name}': {error}") from error
    except Exception as error:
        raise StartError(f"plugin '{name}' failed: {type(error).__name__}: {error}") from error


def _bind(info: CheckpointInfo, asked: str | None) -> tuple[str, QuantizationMethod]:
    """Raises ``ValueError`` when nobody reads it, or a value is wrong."""

    def ask(plugin: QuantizationPlugin) -> Reasons:
        try:
            return plugin.refuses(info)
        except Exception as error:  # a stranger's: left out, as at a start
            return [f"refuses() raised {type(error).__name__}: {error}"]

    try:
        registry = Registry(GROUP)
        offered = registry.candidates() if asked is None else [(asked, registry.get(asked))]
        choice = choose("format", offered, ask)
        return choice.name, choice.value.bind(info)
    except (NothingFits, PluginError) as error:
        raise ValueError(str(error)) from error


def _plain(checkpoint: Checkpoint, layer: LayerOutline) -> Floats:
    header = layer.header()
    try:
        return checkpoint.floats if header is None else floats(header.encoding)
    except KeyError:
        return checkpoint.floats
