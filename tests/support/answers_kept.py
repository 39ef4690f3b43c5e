"""What transformers answered over the models of the catalog, kept in files: made by fixtures/make/answers.py.

To compute them anew takes a minute of two cores in every run, and gives the same: the weights are one file,
whose digest is kept beside the answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.repo import ROOT

ANSWERS = ROOT / "tests" / "fixtures" / "answers"
GREEDY_TOKENS, BEAM_TOKENS, BEAMS = 64, 32, 4


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """After one prompt, in fp32."""

    text: str
    prompt: list[int]
    greedy: list[int]
    """``GREEDY_TOKENS`` ids; no end of sequence ends them."""
    greedy_text: str = ""
    beam: tuple[int, ...] | list[int] = ()
    """The best of ``BEAMS`` after at most ``BEAM_TOKENS``."""
    beam_text: str = ""
    beam_score: float = 0.0


def kept_answers(model: str, weights: Path | str) -> list[KeptAnswer]:
    """Those over this file. Raises ValueError when the answers are another file's."""
    return [KeptAnswer(**answer) for answer in read_kept(ANSWERS / f"{model}.json", weights)["answers"]]


def read_kept(answers: Path, weights: Path | str) -> dict[str, Any]:
    """What a file of answers holds. Raises ValueError when the answers are another file's."""
    kept: dict[str, Any] = json.loads(answers.read_text(encoding="utf-8"))
    if digest(weights) != kept["weights_sha256"]:
        raise ValueError(f"{weights} is not the file that transformers answered over")
    return kept


def digest(path: Path | str) -> str:
    """Of the whole file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
