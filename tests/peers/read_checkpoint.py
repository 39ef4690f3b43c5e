"""Reads a checkpoint with one library, and compares with another: who else reads what we write.

Run once in this project's environment, once in one that has the other library; not part of ``make test``::

    python tests/peers/read_checkpoint.py DIR --reader hundredfold --save ours.pt
    ENV/bin/python tests/peers/read_checkpoint.py DIR --reader transformers --against ours.pt

``--reader transformers`` wants compressed-tensors for int8, smoothquant and fp8, and GPTQModel for gptq and
awq; ``--reader gptqmodel`` is for awq of other widths than 4 bits and for a quantized output layer.

Compared are the logits of a text, and of layers that the other library makes floats (int8 and fp8 in
transformers) every matrix, to the bit. ``--activations int8`` rounds our inputs as those formats mean it.
``--perplexity IDS.json`` gives perplexity over windows of ids instead, as ``hundredfold quality`` counts it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch

TEXT = "The capital of France is Paris. Water boils at a hundred degrees, and the moon goes round the earth."


@dataclass(frozen=True)
class Read:
    """What a library made of the checkpoint."""

    logits: torch.Tensor
    """float32[T, vocabulary]."""
    matrices: dict[str, str] = field(default_factory=dict)
    """Digests of linear layers as float32[N, K], by name; those that the library has as floats."""


def main() -> int:
    """Exit code 1 where the logits differ by more than ``--tolerance`` of their size, or a matrix at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--reader", choices=sorted(READERS), required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.03, help="bf16 arithmetic costs 0.01 to 0.02")
    parser.add_argument("--activations", choices=("float", "int8"), default="float", help="Of our reader.")
    parser.add_argument("--perplexity", type=Path, help='{"windows": [[id, ...], ...], "unscored": n}')
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.perplexity is not None:
        sys.stdout.write(f"{asked.checkpoint}: {_perplexity(asked):.4f}\n")
        return 0
    ids = _ids(asked.checkpoint)
    read = READERS[asked.reader](asked.checkpoint, ids, asked.activations)
    if asked.save is not None:
        torch.save({"logits": read.logits, "matrices": read.matrices}, asked.save)
    if asked.against is None:
        return 0
    saved = torch.load(asked.against, weights_only=True)
    other = Read(saved["logits"], saved["matrices"])
    error = float((read.logits - other.logits).norm() / other.logits.norm())
    agreement = float((read.logits.argmax(-1) == other.logits.argmax(-1)).float().mean())
    both = read.matrices.keys() & other.matrices.keys()
    same = sum(read.matrices[name] == other.matrices[name] for name in both)
    sys.stdout.write(
        f"{asked.checkpoint}: error {error:.5f}, same best token {agreement:.1%} of {len(ids)}, "
        f"{same} of {len(both)} matrices equal to the bit\n"
    )
    return int(error > asked.tolerance or same < len(both))


def _perplexity(asked: argparse.Namespace) -> float:
    text = json.loads(asked.perplexity.read_text())
    first, loss, count = text["unscored"], 0.0, 0
    for ids, logits in MODELS[asked.reader](asked.checkpoint, text["windows"], asked.activations):
        scored = torch.log_softmax(logits[first - 1 : -1].double(), -1)
        loss -= float(scored.gather(1, torch.tensor(ids[first:])[:, None]).sum())
        count += len(ids) - first
    return math.exp(loss / count)


def _ids(checkpoint: Path) -> list[int]:
    """The tokenizer file is checked along with the weights."""
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(TEXT).ids
    return ids


Logits = Iterable[tuple[list[int], torch.Tensor]]
"""Each sequence of ids with its logits float32[T, vocabulary]."""


def _hundredfold(checkpoint: Path, ids: list[int], activations: str) -> Read:
    [(_, logits)] = _hundredfold_logits(checkpoint, [ids], activations)
    from hundredfold.models import resolve
    from hundredfold.plugin.registry import all_registries
    from hundredfold_worker.quantize.source import open_source

    source = open_source(resolve(str(checkpoint)), all_registries())
    matrices: dict[str, str] = {}
    for index in range(source.description.num_layers):
        layer = source.layer(index)
        matrices |= {name: _digest(matrix.weight) for name, matrix in layer.matrices.items()}
    return Read(logits, matrices)


def _hundredfold_logits(checkpoint: Path, sequences: list[list[int]], activations: str) -> Logits:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from hundredfold.models import resolve
    from hundredfold.plugin.registry import all_registries
    from hundredfold_worker.model import LoadOptions, load_model
    from support.worker_model import full_logits

    options = LoadOptions(dtype="fp32", activations=activations, max_model_len=max(map(len, sequences)) + 1)
    model = load_model(resolve(str(checkpoint)), options, all_registries())
    return ((ids, full_logits(model, ids).clone()) for ids in sequences)


def _transformers(checkpoint: Path, ids: list[int], activations: str) -> Read:
    from transformers import AutoTokenizer

    if AutoTokenizer.from_pretrained(checkpoint)(TEXT)["input_ids"] != ids:
        raise SystemExit(f"{checkpoint}: AutoTokenizer reads the text as other ids than tokenizer.json says")
    model = _transformers_model(checkpoint)
    [(_, logits)] = _logits(model, [ids])
    linear = {name: module for name, module in model.named_modules() if name.startswith("model.layers.")}
    weights = {name: getattr(module, "weight", None) for name, module in linear.items()}
    return Read(logits, {name: _digest(weight) for name, weight in weights.items() if _is_matrix(weight)})


def _transformers_model(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    section = json.loads((checkpoint / "config.json").read_text()).get("quantization_config", {})
    # without this the library keeps codes, and dequantizes them in the forward pass
    more = (
        {"quantization_config": CompressedTensorsConfig(run_compressed=False)}
        if section.get("quant_method") == "compressed-tensors"
        else {}
    )
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, **more)


def _gptqmodel(checkpoint: Path, ids: list[int], activations: str) -> Read:
    [(_, logits)] = _logits(_gptqmodel_model(checkpoint), [ids])
    return Read(logits)


def _gptqmodel_model(checkpoint: Path) -> Any:
    from gptqmodel import BACKEND, GPTQModel

    return GPTQModel.load(str(checkpoint), device="cpu", backend=BACKEND.TORCH)


def _logits(model: Any, sequences: list[list[int]]) -> Logits:
    with torch.inference_mode():
        return [(ids, model(input_ids=torch.tensor([ids])).logits[0].float()) for ids in sequences]


def _is_matrix(weight: object) -> TypeGuard[torch.Tensor]:
    return isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.dtype is torch.float32


def _digest(matrix: torch.Tensor) -> str:
    return hashlib.sha256(matrix.detach().float().contiguous().numpy().tobytes()).hexdigest()


READERS = {"hundredfold": _hundredfold, "transformers": _transformers, "gptqmodel": _gptqmodel}
MODELS = {
    "hundredfold": _hundredfold_logits,
    "transformers": lambda checkpoint, ids, _: _logits(_transformers_model(checkpoint), ids),
    "gptqmodel": lambda checkpoint, ids, _: _logits(_gptqmodel_model(checkpoint), ids),
}


if __name__ == "__main__":
    sys.exit(main())
