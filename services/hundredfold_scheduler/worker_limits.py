"""Whether a worker is the right one, and the limits that its own and the settings' make together."""

from __future__ import annotations

from hundredfold.internal.v1 import worker_pb2
from hundredfold.rpc import PROTOCOL_VERSION
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.settings import SchedulerSettings

log = get_logger(__name__)


class WorkerRefused(Exception):
    """A worker that this scheduler must not plan for; the message says what differs."""


def limits_in_force(
    info: worker_pb2.GetWorkerInfoResponse, settings: SchedulerSettings, fingerprint: str | None
) -> WorkerLimits:
    """The limits to plan with. Settings only lower a worker's limits.

    Raises:
        WorkerRefused: Another protocol, model or block size, or limits under which nothing can run.
    """
    if info.protocol_version != PROTOCOL_VERSION:
        raise WorkerRefused(f"it speaks protocol {info.protocol_version}, this scheduler {PROTOCOL_VERSION}")
    if fingerprint is not None and info.model_fingerprint != fingerprint:
        raise WorkerRefused(
            f"it serves the model with fingerprint {info.model_fingerprint[:16]}, not {fingerprint[:16]}"
        )
    if settings.block_size is not None and info.block_size != settings.block_size:
        raise WorkerRefused(f"its block_size is {info.block_size}, the setting says {settings.block_size}")
    max_num_batched_tokens = _lower(
        "max_num_batched_tokens", settings.max_num_batched_tokens, info.max_num_batched_tokens
    )
    max_num_seqs = _lower("max_num_seqs", settings.max_num_seqs, info.max_num_seqs)
    if max_num_seqs > max_num_batched_tokens:
        log.warning(
            "max_num_seqs is cut to max_num_batched_tokens: every running sequence advances in each step",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        max_num_seqs = max_num_batched_tokens
    try:
        return WorkerLimits(
            model_fingerprint=info.model_fingerprint,
            max_model_len=_lower("max_model_len", settings.max_model_len, info.max_model_len),
            vocab_size=info.vocab_size,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            sliding_window=info.sliding_window or None,
            max_draft_tokens=info.max_draft_tokens,
            max_draft_rows=info.max_draft_rows,
        )
    except ValueError as error:
        raise WorkerRefused(f"its limits make no sense: {error}") from None


def _lower(name: str, setting: int | None, worker: int) -> int:
    if setting is None:
        return worker
    if setting > worker:
        log.warning("the worker allows less than the setting", limit=name, setting=setting, worker=worker)
    return min(setting, worker)
