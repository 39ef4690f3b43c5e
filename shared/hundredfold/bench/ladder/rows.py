"""A row of the ladder: what one load found in one stage, and its shares of what the machine could do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from hundredfold.bench.ceilings import Ceilings


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage made the machine do within the measured window."""

    seconds: float
    read_bytes: float = 0.0
    """Weights once a step, and the cache of every sequence in it."""
    operations: float = 0.0
    """Of the products with weights; a multiplication with its addition counts two."""
    cpu_seconds: float | None = None
    """Processor time of all services together."""
    steps: int = 0
    tokens: int = 0

    def read_share(self, ceilings: Ceilings | None) -> float | None:
        """Part of the machine's memory bandwidth that was used."""
        return self._share(self.read_bytes, ceilings.read_bytes_per_s if ceilings else 0.0)

    def operations_share(self, ceilings: Ceilings | None, arithmetic: str) -> float | None:
        """Part of what the machine multiplies at best that was used."""
        return self._share(self.operations, ceilings.operations(arithmetic) if ceilings else 0.0)

    def _share(self, amount: float, ceiling: float) -> float | None:
        if not (amount and ceiling and self.seconds):
            return None
        return amount / self.seconds / ceiling


@dataclass(frozen=True, slots=True)
class Row:
    """One load in one stage. Figures are None where there are none, and ``reason`` says why."""

    stage: str
    title: str
    load: str
    settings: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    tokens_per_s: float | None = None
    """Output tokens of all requests together, over the whole window."""
    ms_per_token: float | None = None
    """Of one request, after its first token: median."""
    ttft_ms: float | None = None
    """Median."""
    ttft_p99_ms: float | None = None
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By service, since it started."""
    read_share: float | None = None
    operations_share: float | None = None
    arithmetic: str = "float"
    """Which ceiling ``operations_share`` is a share of."""
    cpu_ms_per_token: float | None = None
    tokens_per_step: float | None = None
    """Output tokens by steps of the engine."""
    ratio: float | None = None
    """To the first baseline."""
    reason: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ladder:
    """All rows, and what they were measured on."""

    model: str
    machine: str
    ceilings: Ceilings | None
    rows: Sequence[Row]
    seconds: float
    """How long it took to measure."""
    input_len: int = 64
    output_len: int = 128
    """Tokens of each request."""
    notes: Sequence[str] = ()

    def to_json(self) -> str:
        """One JSON object with exactly this class's fields."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Ladder:
        """Read what ``to_json`` wrote. Raises ValueError."""
        data = json.loads(text)
        try:
            ceilings = data["ceilings"]
            data["ceilings"] = None if ceilings is None else Ceilings(**ceilings)
            data["rows"] = [Row(**row) for row in data["rows"]]
            return cls(**data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a ladder: {error}") from error

    @property
    def best(self) -> Row | None:
        """The row of most tokens a second."""
        measured = [row for row in self.rows if row.tokens_per_s]
        return max(measured, key=lambda row: row.tokens_per_s or 0.0, default=None)


def tokens_of(row: Row) -> float:
    """Its speed, 0.0 when it has none."""
    return row.tokens_per_s or 0.0
