"""From settings to an engine that is ready: load, measure, size the cache, warm up. On the device thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from hundredfold.errors import StartError
from hundredfold.models import ModelError, ModelFiles, fingerprint, resolve
from hundredfold.plugin.registry import PluginError, Registry, all_registries
from hundredfold.telemetry import get_logger
from hundredfold_worker.container import usable_processors
from hundredfold_worker.engine.draft_cost import DraftCost
from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.slots import EngineLimits
from hundredfold_worker.engine.speculation import Speculation
from hundredfold_worker.memory import (
    CacheNeed,
    MemoryBudget,
    free_bytes,
    held_bytes,
    num_blocks,
    total_bytes,
)
from hundredfold_worker.model import (
    LoadedModel,
    LoadOptions,
    ModelLoadError,
    PagedCache,
    Selection,
    load_model,
)
from hundredfold_worker.named_values import named_values
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.strategy import Strategy, bind_strategy
from hundredfold_worker.trial import Trial

log = get_logger(__name__)

_CPU_CACHE_TOKENS = 65_536
"""The automatic cache of a CPU: its pages are touched at the start, and few CPUs decode more than this."""


@dataclass(slots=True)
class Phases:
    """Seconds of each phase of the start."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Time a phase and log it."""
        begun = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begun
        log.info("start", phase=name, seconds=round(self.seconds[name], 3))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory."""

    model: LoadedModel
    files: ModelFiles
    fingerprint: str
    phases: Phases = field(default_factory=Phases)
    strategy: Strategy | None = None
    """How to speculate; ``None`` for not at all."""

    @property
    def selections(self) -> tuple[Selection, ...]:
        """Choices made beside the model's own."""
        return () if self.strategy is None else (self.strategy.selection,)


@dataclass(frozen=True, slots=True)
class Started:
    """A worker that can compute."""

    engine: Engine
    loaded: Loaded
    bytes_per_block: int


def open_registries(settings: WorkerSettings) -> dict[str, Registry]:
    """Every group's plugins, as far as the lists allow. Raises ``StartError``."""
    try:
        return all_registries(allow=settings.allow_plugins, deny=settings.deny_plugins)
    except PluginError as error:
        raise StartError(str(error)) from error


def start(settings: WorkerSettings, registries: Mapping[str, Registry]) -> Started:
    """Load the model and make its engine.

    Raises:
        StartError: the model, the plugins or the memory do not allow it; the message says what to change.
    """
    return make_engine(start_model(settings, registries), settings)


def start_model(settings: WorkerSettings, registries: Mapping[str, Registry]) -> Loaded:
    """Load the model. Raises ``StartError``."""
    phases = Phases()
    torch.set_num_threads(settings.num_threads or usable_processors())
    try:
        with phases.time("resolve"):
            files = resolve(settings.model)
            digest = fingerprint(files)
        with phases.time("load"):
            model = load_model(files, _load_options(settings), registries)
            strategy = bind_strategy(settings, registries, model)
    except (ModelError, ModelLoadError, PluginError) as error:
        raise StartError(str(error)) from error
    for warning in model.runtime.warnings:
        log.warning("checkpoint", warning=warning)
    return Loaded(model, files, digest, phases, strategy)


def make_engine(loaded: Loaded, settings: WorkerSettings) -> Started:
    """Size and allocate the cache of a loaded model, and warm it up. Raises ``StartError``."""
    model, phases = loaded.model, loaded.phases
    limits = _limits(model, settings)
    planner = model.cache_planner
    need = CacheNeed(
        planner.bytes_per_block(),
        limits.block_size,
        limits.max_model_len,
        limits.max_num_seqs,
        _CPU_CACHE_TOKENS if model.device.type == "cpu" else None,
    )
    utilization = settings.utilization_on(model.device.type)
    held, free = held_bytes(model.device), free_bytes(model.device)
    budget = MemoryBudget(total_bytes(model.device), utilization, held, 0, free)
    num_blocks(budget, need, settings.num_kv_blocks)  # what cannot fit is said before time is spent
    strategy, cost = loaded.strategy, None
    if settings.warm_up or settings.num_kv_blocks is None or strategy is not None:
        with phases.time("measure"):
            trial = Trial(model, limits)
            budget = replace(budget, step=trial.measure())
        with phases.time("warm up"):
            trial.warm_up()
        if strategy is not None:
            with phases.time("time drafts"):
                cost = DraftCost(*trial.step_seconds(strategy.num_tokens))
        del trial
    blocks = num_blocks(budget, need, settings.num_kv_blocks)
    with phases.time("allocate"):
        cache = _allocate(model, blocks)
    log.info(
        "cache",
        blocks=blocks,
        block_size=limits.block_size,
        tokens=blocks * limits.block_size,
        cache_bytes=cache.nbytes,
        held_bytes=budget.held,
        step_bytes=budget.step,
        total_bytes=budget.total,
    )
    limits = replace(limits, num_blocks=blocks)
    if strategy is None or cost is None:
        return Started(Engine(model, cache, limits), loaded, need.bytes_per_block)
    rows = cost.most_rows(strategy.num_tokens, limits.max_num_seqs)
    limits = replace(limits, max_draft_tokens=strategy.num_tokens, max_draft_rows=rows)
    log.info(
        "speculation", strategy=strategy.selection.chosen, num_tokens=strategy.num_tokens, most_rows=rows
    )
    engine = Engine(model, cache, limits, Speculation(strategy.drafter, cost, limits))
    return Started(engine, loaded, need.bytes_per_block)


def _allocate(model: LoadedModel, blocks: int) -> PagedCache:
    try:
        return model.cache_planner.allocate(blocks)
    except (RuntimeError, MemoryError) as error:
        wanted = blocks * model.cache_planner.bytes_per_block()
        raise StartError(
            f"the system refused {wanted} bytes for {blocks} cache blocks; lower memory_utilization or set "
            "num_kv_blocks"
        ) from error


def _limits(model: LoadedModel, settings: WorkerSettings) -> EngineLimits:
    return EngineLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.batched_tokens_on(model.device.type),
        max_model_len=model.max_model_len,
        block_size=settings.block_size,
        num_blocks=1,
        vocab_size=model.vocab_size,
        sliding_window=model.description.sliding_window,
    )


def _load_options(settings: WorkerSettings) -> LoadOptions:
    return LoadOptions(
        dtype=settings.dtype,
        device=settings.device,
        kv_cache_dtype=settings.kv_cache_dtype,
        attention=settings.attention,
        attention_options=named_values("attention_options", settings.attention_options),
        kernels=settings.kernels,
        activations=settings.activations,
        batch_invariant=settings.batch_invariant,
        quantization=settings.quantization,
        quantization_exclude=settings.quantization_exclude,
        max_model_len=settings.max_model_len,
        block_size=settings.block_size,
        weight_memory=settings.weight_memory,
        num_threads=settings.num_threads or usable_processors(),
    )
