"""KV cache plugins: an encoding, a scale policy that fits it, and honest refusals."""

from __future__ import annotations

import torch

from hundredfold.plugin import Encoding, KVCachePlugin, KVCacheSpec, ScalePolicy
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require

_UNSCALED = {Encoding.FP32, Encoding.BF16}


def check_kv_cache(plugin: KVCachePlugin, *, device: str = "cpu") -> Report:
    """Check encoding, scale policy and refusals over usual cache shapes. Raises ``NonConformance``."""
    check_plugin("hundredfold.kv_cache", plugin)
    unscaled = plugin.scales is ScalePolicy.NONE
    require(
        unscaled or plugin.encoding not in _UNSCALED,
        f"{plugin.name}: {plugin.encoding.value} with scales {plugin.scales.value}; it has none",
    )
    require(
        not unscaled or plugin.encoding in _UNSCALED or plugin.encoding is Encoding.FP8,
        f"{plugin.name}: {plugin.encoding.value} needs scales",
    )
    report = Report()
    for dtype in (torch.float32, torch.bfloat16):
        for head_dim in (16, 64, 128):
            for block_size in (16, 64):
                case = f"{dtype}, head_dim {head_dim}, block_size {block_size}"
                spec = KVCacheSpec(2, 2, head_dim, block_size, torch.device(device), dtype)
                reasons = checked_reasons(plugin, case, plugin.refuses(spec))
                if reasons:
                    report.refused[case] = reasons
                else:
                    report.accepted.append(case)
    require(bool(report.accepted), f"{plugin.name} refuses every cache on {device}: {report.refused}")
    return report
