"""The estimate for programs: one JSON object, sizes in bytes, rates by second."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hundredfold_worker.estimate.estimate import Estimate


def to_json(found: Estimate) -> str:
    """Every figure."""
    case, outline = found.case, found.source.outline
    now, machine = case.now, case.machine
    whole: dict[str, Any] = {
        "model": found.source.name,
        "architecture": outline.architecture,
        "num_parameters": outline.num_parameters,
        "active_parameters": outline.active_parameters,
        "num_layers": outline.num_layers,
        "format": found.source.format,
        "forms": dict(found.forms),
        "stored_bytes": found.source.stored_bytes,
        "stored_bytes_exact": found.source.file_bytes is not None,
        "device": machine.device,
        "dtype": machine.dtype,
        "kv_cache_dtype": case.load.encoding.value,
        "memory": {
            "total_bytes": machine.total,
            "budget_bytes": now.budget,
            "weight_bytes": now.weights,
            "process_bytes": now.base,
            "step_bytes": now.step,
            "cache_bytes_per_token": now.token,
            "bytes_per_block": now.block,
            "for_cache_bytes": now.for_cache,
        },
        "max_model_len": case.load.max_model_len,
        "fits": {
            "blocks": now.blocks,
            "tokens": now.tokens,
            "sequences": now.sequences,
            "wanted_sequences": case.wanted,
            "needed_bytes": case.needs,
            "enough": case.fits,
        },
        "windows": [cache.window for cache in outline.caches] if outline.windowed_layers else None,
        "context": found.context,
        "speeds": [{**asdict(speed), "expected": speed.expected} for speed in found.speeds],
        "rates": {
            "read_bytes_per_s": machine.read_bytes_per_s,
            "operations_per_s": dict(machine.operations_per_s),
            "source": machine.measured,
        },
        "placement": [asdict(placed) for placed in found.placed],
        "remedies": [asdict(remedy) for remedy in found.remedies],
    }
    return json.dumps(whole, indent=2)
