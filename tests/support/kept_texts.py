"""What transformers' tokenizer of the default model's file makes of texts and of ids, kept in a file.

Made by fixtures/make/texts.py. To have transformers read that file's vocabulary takes a third of a minute in
every run, and gives the same: it is one file, whose digest is kept beside the answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from pathlib import Path

from support.answers_kept import ANSWERS, read_kept

KEPT = ANSWERS / "smollm2-135m-texts.json"

TEXTS = [
    "Hello, world!",
    "  leading and trailing  ",
    "Once upon a time there was a little fox who said: \"It's mine, isn't it?\"",
    "def f(x):\n    return x ** 2  # square\n\n\n",
    "naïve café Ünïcode 中文字符 가나다라 русский العربية 😀👩‍👩‍👧",
    "a\u0301 e\u0301 \u200b zero width",
    "tabs\tand\r\nwindows lines\r\n",
    "$3.50 + 20% = x_y-z/w @home #tag ^_^ ~`|",
    "ALLCAPS CamelCase snake_case kebab-case",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
]
SPACED = "Hi . It 's n't"


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """Of ``TEXTS``, ``SPACED`` and ``random_ids``, each in order."""

    plain: list[list[int]]
    """Ids with special tokens read as text."""
    special: list[list[int]]
    """Ids with special tokens read as themselves."""
    decoded: list[str]
    """Random ids, nothing cleaned up."""
    skipped: list[str]
    """The same without special tokens."""
    spaced: str
    """``SPACED`` there and back."""


def random_ids(size: int) -> list[list[int]]:
    """Two hundred times up to sixty ids of a vocabulary."""
    rng = random.Random(11)
    return [[rng.randrange(size) for _ in range(rng.randint(1, 60))] for _ in range(200)]


def kept_texts(weights: Path) -> KeptTexts:
    """Those of this file. Raises ValueError when the answers are another file's."""
    kept = read_kept(KEPT, weights)
    return KeptTexts(**{field.name: kept[field.name] for field in fields(KeptTexts)})
