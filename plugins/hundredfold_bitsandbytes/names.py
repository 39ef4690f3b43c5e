"""Names of the tensors under a layer that tell how its weight is to be read."""

from __future__ import annotations

from hundredfold_bitsandbytes.codebooks import CODEBOOKS

STATE = "weight.quant_state.bitsandbytes__"
STATES = tuple(STATE + kind for kind in CODEBOOKS)
"""A 4-bit weight has one of them."""

SCALES = "SCB"
"""Each row's largest magnitude, float32[N], of an int8 weight."""
