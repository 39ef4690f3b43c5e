"""Speculative plugins: drafts within bounds and vocabulary, whatever they are told of what became of them."""

from __future__ import annotations

import numpy as np

from hundredfold.plugin import DraftRequest, SpeculationSpec, SpeculativePlugin
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require

_SPEC = SpeculationSpec(vocab_size=64, max_model_len=256, max_num_seqs=4, num_speculative_tokens=5)


def check_speculative(plugin: SpeculativePlugin, spec: SpeculationSpec = _SPEC) -> Report:
    """Draft for repetitive, short and full sequences over several rounds. Raises ``NonConformance``."""
    check_plugin("hundredfold.speculative", plugin)
    case = f"vocabulary of {spec.vocab_size}"
    reasons = checked_reasons(plugin, case, plugin.refuses(spec))
    if reasons:
        return Report(refused={case: reasons})
    drafter = plugin.bind(spec)
    sequences = {
        0: [1, 2, 3, 4] * 6,
        1: [7],
        2: [n % spec.vocab_size for n in range(spec.max_model_len - 1)],
    }
    for limit in (spec.num_speculative_tokens, 1, 0):
        requests = [
            DraftRequest(slot, np.array(ids, dtype=np.int32), limit) for slot, ids in sequences.items()
        ]
        drafts = drafter.propose(requests)
        require(
            len(drafts) == len(requests),
            f"{plugin.name}: {len(drafts)} drafts for {len(requests)} requests",
        )
        for request, draft in zip(requests, drafts, strict=True):
            require(
                len(draft) <= limit,
                f"{plugin.name}: {len(draft)} drafts for slot {request.slot}, the limit is {limit}",
            )
            require(
                all(0 <= token < spec.vocab_size for token in draft),
                f"{plugin.name}: drafts {draft} leave the vocabulary of {spec.vocab_size}",
            )
            drafter.observe(request.slot, len(draft), len(draft) // 2)
            sequences[request.slot] += draft[:1]
    for slot in sequences:
        drafter.forget(slot)
    require(drafter.propose([]) == [], f"{plugin.name}: drafts for nobody")
    fresh = drafter.propose([DraftRequest(0, np.array([5], dtype=np.int32), spec.num_speculative_tokens)])
    require(len(fresh) == 1, f"{plugin.name}: no answer for a slot that was forgotten and given away again")
    return Report(accepted=[case])
