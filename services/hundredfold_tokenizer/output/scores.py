"""Log probabilities: kept packed as they came, turned into the contract's messages when they are read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold.internal.v1 import sequence_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.vocabulary import TokenTable

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""

_FIXED_BYTES = 120


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The score of one token and of its likeliest rivals, best first."""

    logprob: float
    rank: int
    top_ids: array[int]
    top_logprobs: array[float]

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return _FIXED_BYTES + 8 * len(self.top_ids)


MISSING = TokenScore(LOWEST, 0, array("I"), array("f"))
"""Stands for a score that never came."""


def unpack(scores: sequence_pb2.Scores) -> list[TokenScore]:
    """One entry per token.

    Raises:
        ValueError: The packed lists do not fit together.
    """
    count, width = len(scores.logprobs), scores.width
    tops = len(scores.top_token_ids)
    if len(scores.ranks) != count or tops != count * width or len(scores.top_logprobs) != tops:
        raise ValueError(f"{count} scores with {len(scores.ranks)} ranks and {tops} rivals of width {width}")
    ids, logprobs = array("I", scores.top_token_ids), array("f", scores.top_logprobs)
    return [
        TokenScore(
            logprob, rank, ids[row * width : (row + 1) * width], logprobs[row * width : (row + 1) * width]
        )
        for row, (logprob, rank) in enumerate(zip(scores.logprobs, scores.ranks, strict=True))
    ]


class ScoreWriter:
    """Writes scores as the contract wants them.

    Args:
        table: The vocabulary.
        hidden: Ids whose text is not in the answer; their bytes are none, so that joined bytes give the
            answer.
    """

    def __init__(self, table: TokenTable, hidden: frozenset[int]) -> None:
        self._raw = table.raw
        self._hidden = hidden

    def write(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> list[pb.TokenLogprobs]:
        """One entry per token id."""
        return [
            pb.TokenLogprobs(
                token=self._token(token_id, score.logprob, score.rank),
                top=[
                    self._token(rival, logprob, None)
                    for rival, logprob in zip(score.top_ids, score.top_logprobs, strict=True)
                    if rival < len(self._raw)
                ],
            )
            for token_id, score in zip(token_ids, scores, strict=True)
        ]

    def _token(self, token_id: int, logprob: float, rank: int | None) -> pb.TokenLogprob:
        raw = self._raw[token_id] if token_id < len(self._raw) else b""
        written = pb.TokenLogprob(
            token_id=token_id,
            logprob=LOWEST if math.isnan(logprob) else max(logprob, LOWEST),
            text=raw.decode("utf-8", "replace"),
            raw=b"" if token_id in self._hidden else raw,
        )
        if rank is not None:
            written.rank = rank
        return written
