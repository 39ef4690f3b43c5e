"""Caches of int8, fp8 and int4: half of bf16's bytes, and a third."""

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


class Fp8E5m2Cache:
    """e5m2: a bit less of fraction than ``fp8``; numbers lose up to 1/8 of themselves."""

    name = "fp8_e5m2"
    api_version = API_VERSION
    encoding = Encoding.FP8_E5M2
    scales = ScalePolicy.PER_TOKEN_HEAD

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Holds every cache."""
        return []


class Int4Cache:
    """int4, asymmetric: a number loses at most 1/30 of what its 32 columns of a token's head range over."""

    name = "int4"
    api_version = API_VERSION
    encoding = Encoding.INT4
    scales = ScalePolicy.PER_TOKEN_GROUP

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        """Holds every cache."""
        return []
