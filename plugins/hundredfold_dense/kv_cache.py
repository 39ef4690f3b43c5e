"""Caches that keep keys and values as floats, without scales."""

from __future__ import annotations

from hundredfold.plugin import API_VERSION, Encoding, KVCacheSpec, Reasons, ScalePolicy


class Bf16Cache:
    """bfloat16: two bytes an element; any device, whatever type the model computes in."""

    name = "bf16"
    api_version = API_VERSION
    encoding = Encoding.BF16
    scales = ScalePolicy.NONE

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Holds every cache."""
        return []


class Fp32Cache:
    """float32: four bytes an element, exact for a model that computes in float32."""

    name = "fp32"
    api_version = API_VERSION
    encoding = Encoding.FP32
    scales = ScalePolicy.NONE

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Holds every cache."""
        return []
