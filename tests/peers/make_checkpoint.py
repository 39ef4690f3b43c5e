"""Quantizes a dense checkpoint with a format's own tool: do we read a whole model of theirs as they do?

Run in an environment that has the tool (version: ``tests/fixtures/make``); not part of ``make test``::

    ENV/bin/python -P tests/peers/make_checkpoint.py DENSE bitsandbytes-nf4 -o DIR
    ENV/bin/python tests/peers/read_checkpoint.py DIR --reader transformers --perplexity IDS.json
    python tests/peers/read_checkpoint.py DIR --reader hundredfold --perplexity IDS.json
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

CALIBRATION = ("assignment", "binary", "class", "comparisons", "compound", "debugger", "strings", "types")
"""Pages of Python's help that ``hundredfold quality`` does not score by default."""
LONGEST = 256


def main() -> None:
    """Writes the checkpoint, and the tokenizer's files where the tool does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dense", type=Path)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    KINDS[asked.kind](asked.dense, asked.out)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if not (asked.out / file).exists():
            shutil.copy(asked.dense / file, asked.out)


def _bitsandbytes(dense: Path, out: Path, **options: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    config = BitsAndBytesConfig(**options)
    model = AutoModelForCausalLM.from_pretrained(
        dense, quantization_config=config, dtype=torch.bfloat16, device_map="cpu"
    )
    model.save_pretrained(out)  # before the first forward: later it refuses on a CPU


def _rows(dense: Path) -> list[dict[str, list[int]]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(dense / "tokenizer.json"))
    texts = [tokenizer.encode(topics[page]).ids[:LONGEST] for page in CALIBRATION]
    return [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in texts]


def _llm_compressor(dense: Path, out: Path, modifiers: Callable[[], list[Any]]) -> None:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.bfloat16)
    oneshot(
        model=model,
        processor=AutoTokenizer.from_pretrained(dense),
        recipe=modifiers(),
        dataset=Dataset.from_list(_rows(dense)),
        max_seq_length=LONGEST,
        num_calibration_samples=len(CALIBRATION),
    )
    model.save_pretrained(out, save_compressed=True)


def _scheme(name: str) -> list[Any]:
    from llmcompressor.modifiers.quantization import QuantizationModifier

    return [QuantizationModifier(scheme=name, targets=["Linear"], ignore=["lm_head"])]


def _smoothed() -> list[Any]:
    from llmcompressor.modifiers.quantization import GPTQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    gptq = GPTQModifier(scheme="W8A8", targets=["Linear"], ignore=["lm_head"])
    return [SmoothQuantModifier(smoothing_strength=0.5), gptq]


def _groups_of_64() -> list[Any]:
    from llmcompressor.modifiers.quantization import GPTQModifier

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return [GPTQModifier(config_groups=groups, ignore=["lm_head"])]


def _gptqmodel(dense: Path, out: Path) -> None:
    from gptqmodel import GPTQModel
    from gptqmodel.quantization.config import GPTQConfig

    config = GPTQConfig(bits=4, group_size=64, device="cpu", pack_impl="original")
    model = GPTQModel.load(str(dense), config)
    model.quantize(_rows(dense), batch_size=1)
    model.save(str(out))


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "bitsandbytes-nf4": partial(_bitsandbytes, load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes-nf4-double": partial(
        _bitsandbytes, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    ),
    "bitsandbytes-fp4": partial(_bitsandbytes, load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "bitsandbytes-int8": partial(_bitsandbytes, load_in_8bit=True),
    "llm-compressor-smoothquant": partial(_llm_compressor, modifiers=_smoothed),
    "llm-compressor-w8a8": partial(_llm_compressor, modifiers=lambda: _scheme("W8A8")),
    "llm-compressor-w4a16-g64": partial(_llm_compressor, modifiers=_groups_of_64),
    "llm-compressor-fp8": partial(_llm_compressor, modifiers=lambda: _scheme("FP8_DYNAMIC")),
    "gptqmodel-gptq-g64": _gptqmodel,
}


if __name__ == "__main__":
    main()
