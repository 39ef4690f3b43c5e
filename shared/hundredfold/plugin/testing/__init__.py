"""A suite with which a plugin proves itself, in whatever test runner its package has.

``check_plugin`` needs no torch; the others import it. Each returns a ``Report`` of what was accepted and what
refused for which reasons, and raises ``NonConformance`` (an ``AssertionError``) that names the case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hundredfold.plugin.testing.report import NonConformance, Report, check_plugin

if TYPE_CHECKING:
    from hundredfold.plugin.testing.attention import check_attention
    from hundredfold.plugin.testing.elementwise import check_elementwise
    from hundredfold.plugin.testing.kernels import check_kernel
    from hundredfold.plugin.testing.kv_cache import check_kv_cache
    from hundredfold.plugin.testing.quantization import MemoryTensors, check_quantization, check_weight
    from hundredfold.plugin.testing.quantizer import check_quantizer
    from hundredfold.plugin.testing.reference import dequantize, reference_attention, reference_linear
    from hundredfold.plugin.testing.speculative import check_speculative

__all__ = [
    "MemoryTensors",
    "NonConformance",
    "Report",
    "check_attention",
    "check_elementwise",
    "check_kernel",
    "check_kv_cache",
    "check_plugin",
    "check_quantization",
    "check_quantizer",
    "check_speculative",
    "check_weight",
    "dequantize",
    "reference_attention",
    "reference_linear",
]

_HOMES = {
    "MemoryTensors": "quantization",
    "check_attention": "attention",
    "check_elementwise": "elementwise",
    "check_kernel": "kernels",
    "check_kv_cache": "kv_cache",
    "check_quantization": "quantization",
    "check_quantizer": "quantizer",
    "check_speculative": "speculative",
    "check_weight": "quantization",
    "dequantize": "reference",
    "reference_attention": "reference",
    "reference_linear": "reference",
}


def __getattr__(name: str) -> Any:
    """Import torch only when a check that needs it is asked for."""
    if name not in _HOMES:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
