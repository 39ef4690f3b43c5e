"""Finds the speculation plugin that was asked for and binds it to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hundredfold.plugin import Drafter, Reasons, SpeculationSpec, SpeculativePlugin
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model import LoadedModel, ModelLoadError, Selection
from hundredfold_worker.model.guards import Guard
from hundredfold_worker.named_values import named_values
from hundredfold_worker.settings import NO_SPECULATION, WorkerSettings

_GROUP = "hundredfold.speculative"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A drafter for the model."""

    drafter: Drafter
    num_tokens: int
    """Most draft tokens of a row."""
    selection: Selection


def bind_strategy(
    settings: WorkerSettings, registries: Mapping[str, Registry], model: LoadedModel
) -> Strategy | None:
    """The strategy of the settings; ``None`` when they want none.

    Raises:
        StartError: an option without a value, or a refusal, with its reasons.
        ModelLoadError: the plugin's fault.
        PluginError: it is not there, or cannot be used.
    """
    name = settings.speculative
    if name == NO_SPECULATION:
        return None
    spec = SpeculationSpec(
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        num_speculative_tokens=settings.num_speculative_tokens,
        options=named_values("speculative_options", settings.speculative_options),
    )
    registry = registries[_GROUP]
    plugin: SpeculativePlugin = registry.get(name)
    guard = Guard(registry)
    reasons: Reasons = guard.call(plugin, "refuses()", lambda: plugin.refuses(spec))
    if reasons:
        raise ModelLoadError(f"speculation '{name}' was asked for and refuses: {'; '.join(reasons)}")
    drafter = guard.call(plugin, "bind()", lambda: plugin.bind(spec))
    selection = Selection("speculative", name, f"asked for, {settings.num_speculative_tokens} tokens")
    return Strategy(drafter, settings.num_speculative_tokens, selection)
