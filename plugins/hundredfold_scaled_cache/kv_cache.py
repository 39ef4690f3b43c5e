"""Caches of int8 and fp8: half of bf16's bytes, a quarter of fp32's."""

from __future__ import annotations

from hundredfold.plugin import API_VERSION, Encoding, KVCacheSpec, Reasons, ScalePolicy


class Int8Cache:
    """int8, symmetric: what a token's key or value of one head loses is at most 1/254 of its largest."""

    name = "int8"
    api_version = API_VERSION
    encoding = Encoding.INT8
    scales = ScalePolicy.PER_TOKEN_HEAD

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Holds every cache."""
        return []


class Fp8Cache:
    """e4m3: small numbers keep their three bits of fraction, large ones lose up to 1/16 of themselves."""

    name = "fp8"
    api_version = API_VERSION
    encoding = Encoding.FP8
    scales = ScalePolicy.PER_TOKEN_HEAD

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Holds every cache."""
        return []
