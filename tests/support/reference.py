"""Ground truth: transformers over the default model's own file, dequantized by transformers.

Each part takes many seconds to load, so a test run loads it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


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

    path = Path(gguf)
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@cache
def load_reference(gguf: str, dtype: str = "float32") -> Reference:
    """Load a GGUF file through transformers, its weights dequantized to ``dtype``."""
    from transformers import AutoModelForCausalLM, GgufConfig

    path = Path(gguf)
    dense = GgufConfig(gguf_file=path.name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=dtype, quantization_config=dense
    )
    return Reference(model.eval(), load_tokenizer(gguf))


def greedy_ids(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """The argmax of a transformers model's logits over everything before each id of ``output``: equal to
    ``output``, by induction, if that is the greedy answer.
    """
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0]
    found: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return found
