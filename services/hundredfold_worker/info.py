"""What GetServerInfo shows of a worker: model, choices with their reasons, cache, plugins."""

from __future__ import annotations

from collections.abc import Mapping

from hundredfold.plugin.registry import Registry
from hundredfold.rpc.facts import plugin_info
from hundredfold.v1 import control_pb2
from hundredfold_worker.startup import Started


def add_plugins(info: control_pb2.ServiceInfo, registries: Mapping[str, Registry]) -> None:
    """Every plugin that was found."""
    for registry in registries.values():
        info.plugins.extend(plugin_info(record) for record in registry.records())


def add_model(info: control_pb2.ServiceInfo, started: Started) -> None:
    """The model and how it runs; limits in force replace what the settings left open."""
    loaded, limits = started.loaded, started.engine.limits
    model = loaded.model
    report = model.runtime
    table_weights = model.description.vocab_size * model.description.hidden_size
    tables = 1 if model.description.tied_head else 2
    info.model.CopyFrom(
        control_pb2.ModelInfo(
            name=loaded.files.name,
            fingerprint=loaded.fingerprint,
            architecture=model.description.architecture,
            max_model_len=limits.max_model_len,
            vocab_size=limits.vocab_size,
            num_parameters=report.num_parameters,
        )
    )
    info.runtime.CopyFrom(
        control_pb2.RuntimeInfo(
            device=report.device,
            dtype=report.dtype,
            selections=[
                control_pb2.Selection(
                    subject=selection.subject,
                    chosen=selection.chosen,
                    reason=selection.reason,
                    refused=[
                        control_pb2.Refusal(name=refused.name, reasons=refused.reasons)
                        for refused in selection.refused
                    ],
                )
                for selection in (*report.selections, *started.loaded.selections)
            ],
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            bytes_per_block=started.bytes_per_block,
            weight_bytes=report.weight_bytes,
            num_threads=report.num_threads,
            layer_weights=report.num_parameters - tables * table_weights,
            output_weights=table_weights,
        )
    )
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
        info.settings[name] = str(getattr(limits, name))
    info.settings["num_kv_blocks"] = str(limits.num_blocks)
    for phase, seconds in loaded.phases.seconds.items():
        info.settings[f"start_{phase.replace(' ', '_')}_s"] = f"{seconds:.3f}"
