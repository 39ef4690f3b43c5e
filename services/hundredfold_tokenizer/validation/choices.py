"""Checks how many answers are asked for, and by what search."""

from __future__ import annotations

from dataclasses import dataclass

from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer import limits
from hundredfold_tokenizer.validation.errors import invalid, unsupported

_NEUTRAL = {"temperature": (0.0, 1.0), "top_p": (1.0,), "top_k": (0,), "min_p": (0.0,)}
"""Values of the fields for random draws that say nothing; a beam search takes no others."""
_WITH_BEAMS = "with sampling.beam_width"


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The search that replaces sampling.

    Attributes:
        width: Beams.
        length_penalty: Exponent of the length by which a score is divided.
        early_stopping: Whether the first complete set of beams ends it.
    """

    width: int
    length_penalty: float
    early_stopping: bool


def check_choices(message: pb.SamplingParams) -> tuple[int, BeamSearch | None]:
    """Number of choices, and the beam search if one is asked for.

    Raises:
        RequestError: INVALID_ARGUMENT for what has no meaning, UNIMPLEMENTED for what could have one.
    """
    n = message.n if message.HasField("n") else 1
    if not 1 <= n <= limits.MAX_CHOICES:
        raise invalid("sampling.n", n, f"is not from 1 to {limits.MAX_CHOICES}")
    if message.HasField("beam_width"):
        return n, _check_beams(message, n)
    for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
        value = getattr(message, name)
        if message.HasField(name) and value != neutral:  # type: ignore[arg-type]
            raise invalid(f"sampling.{name}", value, "is for a beam search, and sampling.beam_width is unset")
    return n, None


def _check_beams(message: pb.SamplingParams, n: int) -> BeamSearch:
    width = message.beam_width
    if not 1 <= width <= limits.MAX_BEAM_WIDTH:
        raise invalid("sampling.beam_width", width, f"is not from 1 to {limits.MAX_BEAM_WIDTH}")
    if n > width:
        raise invalid("sampling.n", n, f"is above sampling.beam_width = {width}")
    length_penalty = message.length_penalty if message.HasField("length_penalty") else 1.0
    if not limits.LENGTH_PENALTY.holds(length_penalty):
        raise invalid("sampling.length_penalty", length_penalty, f"is not {limits.LENGTH_PENALTY}")
    for name, neutral in _NEUTRAL.items():
        value = getattr(message, name)
        if message.HasField(name) and value not in neutral:  # type: ignore[arg-type]
            raise invalid(f"sampling.{name}", value, "is for random draws; a beam search makes none")
    if message.HasField("max_tokens") and message.max_tokens == 0:
        raise invalid("sampling.max_tokens", 0, "leaves a beam search nothing to find")
    if message.stop:
        raise unsupported("sampling.stop", _WITH_BEAMS)
    if message.HasField("logprobs"):
        raise unsupported("sampling.logprobs", _WITH_BEAMS)
    return BeamSearch(width, length_penalty, message.early_stopping)
