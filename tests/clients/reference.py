"""What lm-eval has to find: transformers over the same weights, the same tasks, no server between.

Prints JSON in the form of lm_eval_client.py. Arguments: directory for the tokenizer (lm-eval reads it there),
id of the token that pages begin with. Runs in the environment of the tests: PYTHONPATH=tests.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from hundredfold.models import DEFAULT_MODEL, pull
from support.reference import Reference, load_reference

TASKS = Path(__file__).parent / "lm_eval"


def score(reference: Reference, ids: list[int], known: int) -> float:
    """Log likelihood of the ids after the first ``known``."""
    import torch

    with torch.inference_mode():
        logits = reference.model(torch.tensor([ids])).logits[0].float()
    scores = torch.log_softmax(logits, dim=-1)
    return float(sum(scores[at - 1, ids[at]] for at in range(known, len(ids))))


def docs(name: str) -> list[dict[str, Any]]:
    """The lines of a task's data."""
    return [json.loads(line) for line in (TASKS / name).read_text().splitlines()]


def main() -> None:
    directory, prefix = sys.argv[1], int(sys.argv[2])
    reference = load_reference(str(pull(DEFAULT_MODEL).weights[0]))
    reference.tokenizer.save_pretrained(directory)
    pages = [doc["page"] for doc in docs("wikipages.jsonl")]
    whole = sum(score(reference, [prefix, *reference.encode(page)], 1) for page in pages)
    choices: dict[int, list[float]] = {}
    right = 0
    for number, doc in enumerate(docs("questions.jsonl")):
        context = f"Question: {doc['question']}\nAnswer:"
        known = len(reference.encode(context))
        answers = [reference.encode(f"{context} {choice}") for choice in doc["choices"]]
        choices[number] = [score(reference, ids, known) for ids in answers]
        right += choices[number].index(max(choices[number])) == doc["answer"]
    words = sum(len(page.split()) for page in pages)
    found = {
        "word_perplexity": math.exp(-whole / words),
        "accuracy": right / len(choices),
        "choices": choices,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
