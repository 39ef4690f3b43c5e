"""Binds a format to what another format handed on: each layer of a mixed checkpoint gets its own method."""

from __future__ import annotations

from hundredfold.plugin import (
    CheckpointInfo,
    NothingFits,
    QuantizationMethod,
    QuantizationPlugin,
    Reasons,
    choose,
)
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model.guards import Guard, GuardedMethod


class InstalledFormats:
    """Every format that the registry lets be used."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._guard = Guard(registry)

    def bind(self, part: CheckpointInfo) -> QuantizationMethod:
        """See ``Formats``; a fault of a plugin's is a ``ModelLoadError``."""

        def ask(plugin: QuantizationPlugin) -> Reasons:
            return plugin.refuses(part)

        asking = self._guard.asking(ask, asked_for=False)
        try:
            choice = choose("quantization", self._registry.candidates(), asking)
        except NothingFits as error:
            raise ValueError(str(error)) from error
        try:
            return GuardedMethod.of(self._guard, choice, part)
        except ValueError as error:
            raise ValueError(f"{choice.name}: {error}") from error
