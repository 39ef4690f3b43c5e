"""The seam between the model and the engine: what loading asks for and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import AttentionBatch, Drawer, LayerCache, Refused

if TYPE_CHECKING:
    from hundredfold_worker.model.description import ModelDescription


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the worker's settings ask of loading."""

    dtype: str = "auto"
    """``auto``, ``fp32``, ``bf16`` or ``fp16``: type of activations and of weights that are dense."""
    device: str = "auto"
    """``auto``, ``cpu`` or ``cuda``."""
    kv_cache_dtype: str = "auto"
    """``auto`` or the name of a kv cache plugin."""
    attention: str = "auto"
    """``auto`` or the name of an attention plugin."""
    attention_options: Mapping[str, str] = field(default_factory=dict)
    """What the attention plugin is told."""
    kernels: tuple[str, ...] = ()
    """Kernel plugins in order of preference; empty for every one installed, highest priority first."""
    activations: str = "auto"
    """``auto``, ``float`` or ``int8``: how inputs of layers with integer weights are multiplied."""
    batch_invariant: bool = False
    """Whether to take only kernels and attention by which no row's bits depend on the rows beside it."""
    quantization: str = "auto"
    """``auto``, the name of a format plugin, which the checkpoint has to agree with, or of a quantizer;
    ``fast`` for the quantizer whose weights a kernel favours here, or else ``auto``."""
    quantization_exclude: tuple[str, ...] = ()
    """Patterns of layers that a quantizer leaves alone, by checkpoint names or those of transformers."""
    max_model_len: int | None = None
    """Tokens of the longest sequence; ``None`` takes the checkpoint's limit. More than that is refused."""
    block_size: int = 16
    """Tokens in a cache block."""
    weight_memory: int | None = None
    """Bytes that weights may hold in memory; layers beyond lie in a file. ``None`` for no limit."""
    num_threads: int | None = None
    """Threads of torch; ``None`` leaves torch's own choice."""


@dataclass(frozen=True, slots=True)
class Selection:
    """One choice made at load."""

    subject: str
    """``device``, ``dtype``, or what plugins were asked for: the group without its prefix."""
    chosen: str
    reason: str
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    """How the model runs, for GetServerInfo."""

    device: str
    dtype: str
    """``fp32``, ``bf16`` or ``fp16``."""
    selections: tuple[Selection, ...]
    weight_bytes: int
    """Bytes of the weights as they lie in memory, a tied table counted once."""
    num_parameters: int
    num_threads: int
    warnings: tuple[str, ...] = ()
    """What was odd about the checkpoint but not fatal, e.g. tensors that nothing uses."""


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of every layer."""

    layers: tuple[LayerCache, ...]
    num_blocks: int
    block_size: int

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks in every layer; both int64[n]. All are read before any is written."""
        for layer in self.layers:
            layer.copy_blocks(source, destination)


class CachePlanner(Protocol):
    """Sizes and allocates the cache that the chosen encoding and backend need."""

    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, scales included."""

    def allocate(self, num_blocks: int) -> PagedCache:
        """A cache of ``num_blocks`` blocks; content is never read before it is written."""


def nothing() -> None:
    """Does nothing."""


class LoadedModel(Protocol):
    """Everything the engine needs. One thread uses it, the one that loaded it."""

    @property
    def description(self) -> ModelDescription:
        """The decoder as data."""

    @property
    def runtime(self) -> RuntimeReport:
        """Choices made, with reasons."""

    @property
    def device(self) -> torch.device:
        """Where the model computes; batches have to lie there."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of activations."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding included. Token ids are below this."""

    @property
    def max_model_len(self) -> int:
        """Positions are below this."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as they lie in memory."""

    @property
    def cache_planner(self) -> CachePlanner:
        """Sizes and allocates the cache."""

    def drawer(self, spread_ids: NDArray[np.uint32]) -> Drawer | None:
        """What draws from this model's logits; ``None`` where no plugin does. See ``DrawingElementwise``."""

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        logits_at: Tensor,
        before_kernels: Callable[[], None] = nothing,
    ) -> Tensor:
        """Run one step and write its keys and values to the cache.

        Args:
            token_ids: int64[T], the rows of ``batch`` one after the other.
            batch: the step's rows; its tensors on the model's device.
            cache: from ``cache_planner``.
            logits_at: int64[R], flat positions below T whose logits are wanted; R may be 0.
            before_kernels: called once, as late as can be before the first kernel runs.

        Returns:
            [R, vocab_size] in ``dtype`` or in float32, owned by the caller until the next call. Runs in
            inference mode: change it in place only inside ``torch.inference_mode()``.
        """
