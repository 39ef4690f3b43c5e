"""Loading: from a checkpoint's files to a model that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.config.paths import cache_dir
from hundredfold.models import ModelFiles
from hundredfold.models.errors import ModelError
from hundredfold.plugin import (
    Activations,
    AttentionBatch,
    Drawer,
    DrawingElementwise,
    ElementwiseSpec,
    KVCacheSpec,
    NothingFits,
    StoredLinear,
)
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model.activations import ActivationsPolicy
from hundredfold_worker.model.architectures import describe
from hundredfold_worker.model.build import Builder, Ends, attention_spec
from hundredfold_worker.model.cache import BackendCachePlanner, heads_of_cache
from hundredfold_worker.model.checkpoint import Checkpoint, open_checkpoint
from hundredfold_worker.model.decoder import Decoder
from hundredfold_worker.model.description import ModelDescription
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.guards import GuardedMethod
from hundredfold_worker.model.loaded import (
    LoadedModel,
    LoadOptions,
    PagedCache,
    RuntimeReport,
    Selection,
    nothing,
)
from hundredfold_worker.model.offload import Budgeted, Held, load_layers
from hundredfold_worker.model.on_the_fly import FAST, choose_on_the_fly
from hundredfold_worker.model.precision import NAMES, choose_device, choose_dtype
from hundredfold_worker.model.rotary import RotaryTable
from hundredfold_worker.model.runner import Runner
from hundredfold_worker.model.selection import (
    AUTO,
    KernelChooser,
    choose_attention,
    choose_elementwise,
    choose_kv_cache,
    choose_quantization,
    with_remarks,
)
from hundredfold_worker.model.weights import WeightReader


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    """A ``LoadedModel`` whose weights lie in this process."""

    description: ModelDescription
    runtime: RuntimeReport
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    decoder: Decoder
    runner: Runner

    @property
    def vocab_size(self) -> int:
        """See ``LoadedModel``."""
        return self.description.vocab_size

    @property
    def weight_bytes(self) -> int:
        """See ``LoadedModel``."""
        return self.runtime.weight_bytes

    @property
    def cache_planner(self) -> BackendCachePlanner:
        """See ``LoadedModel``."""
        return self.decoder.cache_planner

    def drawer(self, spread_ids: NDArray[np.uint32]) -> Drawer | None:
        """See ``LoadedModel``."""
        operations = self.decoder.layers[0].operations
        return operations.drawer(spread_ids) if isinstance(operations, DrawingElementwise) else None

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        logits_at: Tensor,
        before_kernels: Callable[[], None] = nothing,
    ) -> Tensor:
        """See ``LoadedModel``."""
        return self.runner.forward(token_ids, batch, cache, logits_at, before_kernels)


def load_model(files: ModelFiles, options: LoadOptions, registries: Mapping[str, Registry]) -> LoadedModel:
    """Load ``files`` layer by layer; at most the weights and one layer are in memory at any time.

    ``registries`` holds one registry for each plugin group, as ``all_registries`` gives them.
    Called on the thread that will run the model.

    Raises:
        ModelLoadError: the checkpoint or the options cannot be served.
    """
    try:
        return _load(files, options, registries)
    except ModelError as error:
        raise ModelLoadError(str(error)) from error
    except OSError as error:
        raise ModelLoadError(f"model '{files.name}' cannot be read: {error}") from error


def _load(files: ModelFiles, options: LoadOptions, registries: Mapping[str, Registry]) -> LoadedDecoder:
    if options.num_threads is not None:
        if options.num_threads < 1:
            raise ModelLoadError(f"num_threads is {options.num_threads}, the least is 1")
        torch.set_num_threads(options.num_threads)
    device, device_selection = choose_device(options.device)
    dtype, dtype_selection = choose_dtype(options.dtype, device)
    checkpoint = open_checkpoint(files)
    model = describe(checkpoint)
    description = model.description
    max_model_len = _max_model_len(options, description)
    on_the_fly = choose_on_the_fly(registries, options, checkpoint.info, model.names, device)
    asked_format = AUTO if on_the_fly is not None or options.quantization == FAST else options.quantization
    method, quantization_selection = _format_of(checkpoint, registries, asked_format)
    kv_heads, head_dim = heads_of_cache(description)
    spec = KVCacheSpec(description.num_layers, kv_heads, head_dim, options.block_size, device, dtype)
    encoding, kv_selection = choose_kv_cache(registries, spec, options.kv_cache_dtype)
    layers = [attention_spec(a) for a in dict.fromkeys(layer.attention for layer in description.layers)]
    invariant = options.batch_invariant
    attention, attention_selection = choose_attention(
        registries,
        layers,
        spec,
        encoding,
        options.attention,
        options.attention_options,
        batch_invariant=invariant,
    )
    activations = frozenset(layer.mlp.activation for layer in description.layers)
    operations, elementwise_selection = choose_elementwise(
        registries, ElementwiseSpec(device, dtype, activations)
    )
    meant = Activations.FLOAT if on_the_fly is None else on_the_fly.activations
    policy = ActivationsPolicy(options.activations, options.dtype, device, meant)
    kernels = KernelChooser(registries, options.kernels, device, dtype, policy, batch_invariant=invariant)
    reader = WeightReader(checkpoint, method, model.names)
    rotaries = description.rotaries
    builder = Builder(model, reader, kernels, operations, device, dtype, rotaries, on_the_fly)
    ends = builder.ends()
    tables = tuple(RotaryTable(rotary, max_model_len, device) for rotary in rotaries)
    held = builder.nbytes + sum(table.nbytes for table in tables)
    budgeted = _layers(builder, options.weight_memory, held, ends)
    decoder = Decoder(
        embedding=ends.embedding,
        embedding_scale=float(torch.tensor(description.embedding_scale, dtype=dtype)),
        rotaries=tables,
        layers=budgeted.layers,
        final_norm=ends.final_norm,
        head=ends.head,
        logit_softcap=description.logit_softcap,
        attention=attention,
        cache_planner=BackendCachePlanner(attention, spec, encoding),
    )
    quantization_selection = with_remarks(quantization_selection, method)
    if on_the_fly is not None:
        quantization_selection = on_the_fly.selection(quantization_selection)
    runtime = RuntimeReport(
        device=device.type,
        dtype=NAMES[dtype],
        selections=(
            device_selection,
            dtype_selection,
            quantization_selection,
            *kernels.selections(),
            elementwise_selection,
            attention_selection,
            kv_selection,
            *budgeted.selections,
        ),
        weight_bytes=builder.nbytes + sum(table.nbytes for table in tables) - budgeted.saved,
        num_parameters=reader.num_parameters,
        num_threads=torch.get_num_threads(),
        warnings=tuple(reader.warnings()),
    )
    return LoadedDecoder(description, runtime, device, dtype, max_model_len, decoder, Runner(decoder))


def _format_of(
    checkpoint: Checkpoint, registries: Mapping[str, Registry], asked: str
) -> tuple[GuardedMethod, Selection]:
    try:
        return choose_quantization(registries, checkpoint.info, asked)
    except ModelLoadError as error:
        if isinstance(error.__cause__, (NothingFits, ValueError)):  # not a plugin's own fault
            raise ModelLoadError(f"{checkpoint.path}: {error}") from error
        raise


def _layers(builder: Builder, budget: int | None, held: int, ends: Ends) -> Budgeted:
    """Every layer; ``held`` are the bytes of other weights, which count against the budget, too."""
    count = builder.model.description.num_layers
    if budget is None:
        return Budgeted(tuple(map(builder.layer, range(count))))
    if builder.device.type != "cpu":
        raise ModelLoadError(
            f"weight_memory is for weights on a CPU, not on {builder.device.type}, where nothing copies "
            "layers ahead of their use: leave it unset; fewer bits (quantization) or device cpu take less"
        )
    head = ends.head.tensors if isinstance(ends.head, StoredLinear) else None
    table = ends.embedding.tensors
    if head is None or {part.data_ptr() for part in head} & {part.data_ptr() for part in table}:
        table = ()  # the output layer may be the same tensor, and reads all of it
    return load_layers(builder.layer, count, Held(held, table), budget, cache_dir() / "weights")


def _max_model_len(options: LoadOptions, description: ModelDescription) -> int:
    asked, limit = options.max_model_len, description.longest
    if asked is None:
        return description.max_position
    if not 1 <= asked <= limit:
        raise ModelLoadError(f"max_model_len is {asked}, the checkpoint allows 1 to {limit}")
    return asked
