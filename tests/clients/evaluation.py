"""lm-eval's figures beside transformers' own: the same perplexity, the same scores, the same answers."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from clients import environments
from clients.environments import BUILD, HERE, Failed, run
from clients.server import Server
from hundredfold.models import DEFAULT_MODEL, fingerprint, resolve
from support.repo import ROOT

PREFIX_ID = "0"
"""<|endoftext|> of the default model: what pages begin with."""

MOST_PERPLEXITY = 0.005
"""Largest relative difference of the word perplexities."""

MOST_SCORE = 0.02
"""Largest difference of two answers' log likelihoods, a few thousandths of what tells answers apart."""

TOKENIZER = BUILD / "tokenizer"
"""The model's tokenizer in a form that foreign clients read."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(BUILD / "huggingface")}


def compare(server: Server) -> str:
    """A line of figures. Raises ``Failed`` when they differ."""
    interpreter = environments.python("lm-eval", "lm-eval[api]", "transformers")
    wanted = reference()
    command = [interpreter, HERE / "lm_eval_client.py", server.base_url, server.model, TOKENIZER, PREFIX_ID]
    output = run(command, timeout_s=900, cwd=HERE / "lm_eval", env=OFFLINE)
    found = json.loads(output.strip().splitlines()[-1])
    perplexity = found["word_perplexity"] / wanted["word_perplexity"] - 1
    if not abs(perplexity) <= MOST_PERPLEXITY:
        raise Failed(f"word perplexity {found['word_perplexity']}, transformers {wanted['word_perplexity']}")
    worst = 0.0
    for number, scores in wanted["choices"].items():
        ours = found["choices"][number]
        worst = max(worst, *(abs(one - other) for one, other in zip(ours, scores, strict=True)))
        if _best(ours) != _best(scores):
            raise Failed(f"question {number}: {ours}, transformers {scores}")
    if worst > MOST_SCORE or found["accuracy"] != wanted["accuracy"]:
        raise Failed(f"scores differ by {worst}, accuracy {found['accuracy']} and {wanted['accuracy']}")
    return (
        f"word perplexity {found['word_perplexity']:.3f} ({perplexity:+.3%}), "
        f"accuracy {found['accuracy']:.3f} (equal), scores within {worst:.4f}"
    )


def _best(scores: list[float]) -> int:
    return scores.index(max(scores))


def reference() -> dict[str, Any]:
    """What transformers finds, once for a model, its tasks and versions; writes the tokenizer on the way."""
    kept = BUILD / "reference.json"
    sources = [*sorted((HERE / "lm_eval").iterdir()), HERE / "reference.py", ROOT / "constraints.txt"]
    digest = hashlib.sha256(fingerprint(resolve(DEFAULT_MODEL)).encode())
    for source in sources:
        if source.is_file():
            digest.update(source.read_bytes())
    key = digest.hexdigest()
    if kept.exists() and TOKENIZER.exists():
        known = json.loads(kept.read_text())
        if known["key"] == key:
            return dict(known["found"])
    command = [sys.executable, HERE / "reference.py", TOKENIZER, PREFIX_ID]
    output = run(command, timeout_s=1500, env={"PYTHONPATH": str(HERE.parent)})
    found = json.loads(output.strip().splitlines()[-1])
    kept.write_text(json.dumps({"key": key, "found": found}))
    return dict(found)
