"""Reads a checkpoint with one library, and compares logits with another's: who else reads what we write.

Run once in this project's environment, once in one that has the other library; not part of ``make test``::

    python tests/peers/read_checkpoint.py DIR --reader hundredfold --save ours.pt
    ENV/bin/python tests/peers/read_checkpoint.py DIR --reader transformers --against ours.pt

``--reader transformers`` wants compressed-tensors for int8, smoothquant and fp8, and GPTQModel for gptq and
awq; ``--reader gptqmodel`` is for awq of other widths than 4 bits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

TEXT = "The capital of France is Paris. Water boils at a hundred degrees, and the moon goes round the earth."


def main() -> int:
    """Exit code 1 where the logits differ by more than ``--tolerance`` of their size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--reader", choices=sorted(READERS), required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.03, help="bf16 arithmetic costs 0.01 to 0.02")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ids = _ids(asked.checkpoint)
    logits = READERS[asked.reader](asked.checkpoint, ids)
    if asked.save is not None:
        torch.save(logits, asked.save)
    if asked.against is None:
        return 0
    other = torch.load(asked.against, weights_only=True)
    error = float((logits - other).norm() / other.norm())
    agreement = float((logits.argmax(-1) == other.argmax(-1)).float().mean())
    sys.stdout.write(
        f"{asked.checkpoint}: error {error:.5f}, same best token {agreement:.1%} of {len(ids)}\n"
    )
    return int(error > asked.tolerance)


def _ids(checkpoint: Path) -> list[int]:
    """The tokenizer file is checked along with the weights."""
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(TEXT).ids
    return ids


def _hundredfold(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from hundredfold.models import resolve
    from hundredfold.plugin.registry import all_registries
    from hundredfold_worker.model import LoadOptions, load_model
    from support.worker_model import full_logits

    options = LoadOptions(dtype="fp32", activations="float", max_model_len=256)
    return full_logits(load_model(resolve(str(checkpoint)), options, all_registries()), ids).clone()


def _transformers(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if AutoTokenizer.from_pretrained(checkpoint)(TEXT)["input_ids"] != ids:
        raise SystemExit(f"{checkpoint}: AutoTokenizer reads the text as other ids than tokenizer.json says")
    return _logits(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32), ids)


def _gptqmodel(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    from gptqmodel import BACKEND, GPTQModel

    return _logits(GPTQModel.load(str(checkpoint), device="cpu", backend=BACKEND.TORCH), ids)


def _logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0].float()
    return logits


READERS = {"hundredfold": _hundredfold, "transformers": _transformers, "gptqmodel": _gptqmodel}


if __name__ == "__main__":
    sys.exit(main())
