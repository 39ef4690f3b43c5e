"""Architectures by the name a checkpoint gives them. A new one is a file here and a line in each table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hundredfold.models import GgufMetadata
from hundredfold_worker.model.architectures import gemma2, gemma3, llama, olmo2, phi3, qwen
from hundredfold_worker.model.architectures.names import DescribedModel, LayerNames, ParameterNames
from hundredfold_worker.model.checkpoint import Checkpoint, ConfigJson, MappedTensors
from hundredfold_worker.model.errors import ModelLoadError

__all__ = ["DescribedModel", "LayerNames", "ParameterNames", "describe"]

FROM_CONFIG: Mapping[str, Callable[[ConfigJson], DescribedModel]] = {
    "Gemma2ForCausalLM": gemma2.from_config,
    "Gemma3ForCausalLM": gemma3.from_config,
    "LlamaForCausalLM": llama.from_config,
    "MistralForCausalLM": llama.mistral_from_config,
    "Olmo2ForCausalLM": olmo2.from_config,
    "Phi3ForCausalLM": phi3.from_config,
    "Qwen2ForCausalLM": qwen.qwen2_from_config,
    "Qwen3ForCausalLM": qwen.qwen3_from_config,
}
"""By ``architectures`` in config.json."""

FROM_GGUF: Mapping[str, Callable[[GgufMetadata, MappedTensors], DescribedModel]] = {
    "gemma2": gemma2.from_gguf,
    "gemma3": gemma3.from_gguf,
    "llama": llama.from_gguf,
    "olmo2": olmo2.from_gguf,
    "phi3": phi3.from_gguf,
    "qwen2": qwen.qwen2_from_gguf,
    "qwen3": qwen.qwen3_from_gguf,
}
"""By ``general.architecture`` in GGUF metadata."""


def describe(checkpoint: Checkpoint) -> DescribedModel:
    """The model that a checkpoint says it is.

    Raises:
        ModelLoadError: the architecture is unknown, or its configuration cannot be served.
        CheckpointError: a GGUF key has the wrong type.
    """
    configuration = checkpoint.configuration
    if isinstance(configuration, GgufMetadata):
        name = configuration.string("general.architecture")
        if name is None or name not in FROM_GGUF:
            raise _unknown(checkpoint, repr(name), FROM_GGUF)
        return FROM_GGUF[name](configuration, checkpoint.tensors)
    names = configuration.values.get("architectures")
    listed = names if isinstance(names, list) else []
    known = next((name for name in FROM_CONFIG if name in listed), None)
    if known is None:
        raise _unknown(checkpoint, repr(names)[:200], FROM_CONFIG)
    return FROM_CONFIG[known](configuration)


def _unknown(checkpoint: Checkpoint, found: str, supported: Mapping[str, object]) -> ModelLoadError:
    names = ", ".join(sorted(supported))
    return ModelLoadError(f"{checkpoint.path}: architecture {found} is not supported; supported: {names}")
