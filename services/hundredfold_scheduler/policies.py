"""From settings to the core's policies, and the words in which GetServerInfo tells them."""

from __future__ import annotations

from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.pacing import STRETCH, BesideDecodes, PromptShare, StartPace, WithinTime
from hundredfold_scheduler.core.policy import (
    AdmissionOrder,
    CheapestOfLowestPriority,
    FirstComeFirstServed,
    LatestOfLowestPriority,
    StrictPriority,
    VictimChoice,
)
from hundredfold_scheduler.core.scheduler import SchedulerConfig
from hundredfold_scheduler.settings import SchedulerSettings

POLICIES = (
    "order",
    "ageing_s",
    "victims",
    "batch_timeout_ms",
    "prefill_interval",
    "step_target_ms",
    "run_ahead_ms",
)
"""Settings that GetServerInfo tells beside the limits."""


def core_config(settings: SchedulerSettings) -> SchedulerConfig:
    """What the core is to do."""
    return SchedulerConfig(
        queue=QueueLimits(settings.max_queued_requests, settings.max_queued_tokens),
        max_plans_in_flight=settings.max_plans_in_flight,
        max_unread_bytes=settings.unread_limit,
        order=_order(settings),
        victims=_victims(settings),
        share=_share(settings),
        pace=StartPace(settings.batch_timeout_ms / 1e3, settings.prefill_interval),
        run_ahead_s=settings.run_ahead_ms / 1e3,
    )


def policies_in_force(settings: SchedulerSettings) -> dict[str, str]:
    """The policies by the names of their settings."""
    told = {name: str(getattr(settings, name)) for name in POLICIES}
    if settings.step_target_ms is None:
        told["step_target_ms"] = f"{STRETCH:g} x the decodes"
    return told


def _order(settings: SchedulerSettings) -> AdmissionOrder:
    if settings.order == "fcfs":
        return FirstComeFirstServed(settings.ageing_s)
    return StrictPriority(settings.ageing_s)


def _victims(settings: SchedulerSettings) -> VictimChoice:
    return LatestOfLowestPriority() if settings.victims == "latest" else CheapestOfLowestPriority()


def _share(settings: SchedulerSettings) -> PromptShare:
    target_ms = settings.step_target_ms
    return BesideDecodes() if target_ms is None else WithinTime(target_ms / 1e3)
