"""The stages of the ladder: what is changed from one to the next, and under which loads it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hundredfold.bench.stack import MAKE_UP

Arithmetic = Literal["float", "int8"]

INPUT_LEN, OUTPUT_LEN = 64, 128


@dataclass(frozen=True, slots=True)
class Load:
    """What is put on the door: a closed loop of requests of one length, greedy."""

    title: str
    concurrency: int
    num_requests: int
    phrase: int = 0
    """Prompt tokens after which a prompt repeats itself; 0 for random ones."""
    input_len: int = INPUT_LEN
    output_len: int = OUTPUT_LEN

    @property
    def output_tokens(self) -> int:
        """All that the load asks for."""
        return self.num_requests * self.output_len


@dataclass(frozen=True, slots=True)
class NaiveStage:
    """transformers' ``generate``, one request."""

    key: str
    title: str
    dtype: Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Settings of the services on top of the best ones so far, and loads."""

    key: str
    title: str
    loads: Sequence[Load]
    settings: Mapping[str, str] = field(default_factory=dict)
    """By ``service.setting``."""
    arithmetic: Arithmetic | None = None
    """Which ceiling the products are held against; that of the stages before when None."""
    alone: bool = False
    """Its settings are all there are: nothing is taken over from the stages before."""
    kept: bool = True
    """The stages after it build on it where it was faster than what it builds on."""
    workers: int = 1
    least_cores: int = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the loads are."""

    some: int
    many: int
    singles: int
    """Requests one after the other of a load of one at a time."""
    output_len: int = OUTPUT_LEN


FULL = Scale(some=64, many=256, singles=2)
QUICK = Scale(some=4, many=8, singles=1, output_len=16)

PHRASE = 8
"""Tokens that a copy-heavy prompt says over and over."""

FLOAT = {"worker.activations": "float", "worker.quantization": "auto", "worker.kv_cache_dtype": "auto"}
"""The settings of the first stage on our engine: weights as stored, everything else as floats."""


def naive_stages() -> list[NaiveStage]:
    """The baselines; the first is what ratios are told against."""
    return [
        NaiveStage("naive-fp32", "transformers generate, fp32", "fp32"),
        NaiveStage("naive-bf16", "transformers generate, bf16", "bf16"),
    ]


def stages(scale: Scale) -> list[Stage]:
    """The rungs on our engine, in order."""
    length = scale.output_len
    single = Load("1 request", 1, scale.singles, output_len=length)
    copying = Load("1 request, much to copy", 1, scale.singles, PHRASE, output_len=length)
    some = Load(f"{scale.some} at once", scale.some, scale.some, output_len=length)
    many = Load(f"{scale.many} at once", scale.many, scale.many, output_len=length)
    return [
        Stage("engine", "our engine, weights as stored", (single,), FLOAT, "float", alone=True),
        Stage("batching", "+ continuous batching, paged cache", (some, many)),
        Stage(
            "int8-activations",
            "+ int8 activations",
            (single, many),
            {"worker.activations": "int8"},
            "int8",
        ),
        Stage(
            "int8-weights",
            "+ int8 weights (--quantization int8)",
            (single, many),
            {"worker.quantization": "int8", "worker.activations": "auto"},
            "int8",
        ),
        Stage("int8-cache", "+ int8 cache", (copying, many), {"worker.kv_cache_dtype": "int8"}),
        Stage(
            "speculation",
            "+ n-gram speculation",
            (single, copying, many),
            {"worker.speculative": "ngram"},
            kept=False,
        ),
        Stage("replicas", "+ a second worker", (many,), workers=2, least_cores=4, kept=False),
        Stage(
            "default",
            "the default: what `make up` starts",
            (single, some, many),
            MAKE_UP,
            alone=True,
        ),
    ]


def merged(base: Mapping[str, str], stage: Stage) -> dict[str, str]:
    """The settings of a stage on top of those before it."""
    return dict(stage.settings) if stage.alone else {**base, **stage.settings}
