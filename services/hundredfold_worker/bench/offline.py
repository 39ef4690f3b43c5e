"""A run of ``bench offline``: start an engine, warm it up with the load's own shapes, measure, report."""

from __future__ import annotations

import resource
from dataclasses import replace
from importlib.metadata import version
from typing import cast

import numpy as np

from hundredfold.bench.plan import WARMUP_OUTPUT_LEN, LoadPlan
from hundredfold.bench.report import Environment, Number, Report, RequestRecord, summarize
from hundredfold_worker.bench.load import Load, Recorded, StaticPlanner
from hundredfold_worker.bench.raw import RecordingModel, replay
from hundredfold_worker.engine.run_pass import StepTimes
from hundredfold_worker.model import LoadedModel, RuntimeReport
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import make_engine, open_registries, start_model

_LIBRARIES = ("hundredfold", "torch", "numpy")


def measure(plan: LoadPlan, settings: WorkerSettings, *, raw: bool) -> Report:
    """Run the load. Raises ``StartError`` when the engine cannot start or the load does not fit it."""
    loaded = start_model(settings, open_registries(settings))
    recording = RecordingModel(loaded.model)
    started = make_engine(replace(loaded, model=cast(LoadedModel, recording)), settings)
    concurrency = min(plan.concurrency or 1, plan.num_requests)
    load = Load(plan.num_requests, concurrency, plan.input_len, plan.output_len, plan.seed)
    planner = StaticPlanner(started.engine, load)
    if plan.warmup:
        short = min(plan.output_len, WARMUP_OUTPUT_LEN)
        warm = replace(load, num_requests=plan.warmup, output_len=short, seed=plan.seed + 1)
        StaticPlanner(started.engine, replace(warm, concurrency=min(concurrency, plan.warmup))).run()
    before = replace(started.engine.times)
    recording.recording = raw
    record = planner.run()
    recording.recording = False
    figures = _figures(started.engine.times.since(before), record, load)
    if raw:
        seconds = replay(recording)
        figures["raw_output_tokens_per_s"] = int(np.isfinite(record.tokens).sum()) / seconds
        figures["offline_to_raw"] = seconds / (record.ended - record.begun)
    return summarize(
        _records(record, load),
        mode="offline",
        environment=_environment(loaded.model.runtime),
        parameters={**plan.parameters(), "address": None, "model": loaded.files.name},
        client=figures,
        warnings=loaded.model.runtime.warnings,
    )


def _records(record: Recorded, load: Load) -> list[RequestRecord]:
    found = []
    for request in range(load.num_requests):
        times = record.tokens[request][np.isfinite(record.tokens[request])]
        failure = record.failures.get(request)
        found.append(
            RequestRecord(
                start=float(record.started[request]),
                end=float(times[-1]) if len(times) else record.ended,
                event_times=times,
                first_event_tokens=min(1, len(times)),
                received_tokens=len(times),
                prompt_tokens=load.input_len,
                completion_tokens=len(times),
                error=None if failure is None else "INTERNAL",
                detail=failure or "",
            )
        )
    return found


def _figures(times: StepTimes, record: Recorded, load: Load) -> dict[str, Number]:
    """Where a step's time went, in milliseconds on average."""
    steps = max(record.steps, 1)
    whole = record.ended - record.begun
    parts = times.batch_s + times.forward_s + times.sample_s + times.commit_s
    return {
        "steps": record.steps,
        "step_ms": 1e3 * whole / steps,
        "step_batch_ms": 1e3 * times.batch_s / steps,
        "step_forward_ms": 1e3 * times.forward_s / steps,
        "step_sample_ms": 1e3 * times.sample_s / steps,
        "step_commit_ms": 1e3 * times.commit_s / steps,
        "step_apply_ms": 1e3 * (times.total_s - parts) / steps,
        "step_planner_ms": 1e3 * (whole - times.total_s) / steps,
        "tokens_per_step": load.num_requests * (load.input_len + load.output_len - 1) / steps,
    }


def _environment(report: RuntimeReport) -> Environment:
    chosen = {selection.subject: selection.chosen for selection in reversed(report.selections)}
    return Environment(
        device=f"{report.device}, {report.num_threads} threads",
        precision=f"{report.dtype}, {chosen.get('quantization')} weights by {chosen.get('kernels')}, "
        f"{chosen.get('kv_cache')} cache",
        versions={name: version(name) for name in _LIBRARIES},
        peak_memory_bytes={"worker": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
    )
