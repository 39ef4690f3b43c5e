"""Who reads which type."""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.plugin import Codebook4Weight, GroupedIntWeight, LayerRequest, StoredTensor
from hundredfold_gguf.codebook import iq4_nl, iq4_xs, mxfp4
from hundredfold_gguf.k_quants import q2_k, q3_k, q4_k, q5_k, q6_k
from hundredfold_gguf.simple import q4_0, q4_1, q5_0, q5_1, q8_0

READERS: dict[str, Callable[[LayerRequest, StoredTensor], GroupedIntWeight | Codebook4Weight]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
}
"""Types that a canonical weight holds as they are, to the bit."""
