"""Ground truth: transformers over the default model's own file, dequantized by the gguf library.

Its own reader of such files uses that library too, and takes most of a minute. What it reads of a vocabulary
is kept under build/, by the file's content and the library's version, in transformers' own form.
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.repo import ROOT

KEPT = ROOT / "build" / "references"


@dataclass(frozen=True)
class Reference:
    """A transformers model and tokenizer."""

    model: Any
    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """Ids of a text, special tokens read as text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens left out, nothing cleaned up."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@cache
def load_tokenizer(gguf: str) -> Any:
    """The tokenizer that transformers reads from a GGUF file."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(kept(gguf, "tokenizer", read_tokenizer))


@cache
def load_reference(gguf: str) -> Reference:
    """The model of a GGUF file in fp32, and its tokenizer."""
    from support.llama_checkpoints import llama_from_gguf

    return Reference(llama_from_gguf(Path(gguf)), load_tokenizer(gguf))


def kept(gguf: str, part: str, read: Callable[[Path, Path], None]) -> Path:
    """The directory that ``read`` fills from the file, once for all processes and runs."""
    import transformers

    with open(gguf, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    directory = KEPT / f"{digest}-transformers-{transformers.__version__}" / part
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as staging:
                read(Path(gguf), Path(staging) / part)
                (Path(staging) / part).rename(directory)
    return directory


def read_tokenizer(gguf: Path, directory: Path) -> None:
    """Have transformers read the vocabulary, and save what it made of it."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)


def greedy_ids(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """The argmax of a transformers model's logits over everything before each id of ``output``: equal to
    ``output``, by induction, if that is the greedy answer.
    """
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0]
    found: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return found
