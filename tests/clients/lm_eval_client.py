"""lm-eval against the gateway: runs the tasks in lm_eval/ and prints what it measured as JSON.

Arguments: base URL, model, directory of the tokenizer, id of the token that pages begin with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = ["local_perplexity", "local_choices"]


def main() -> None:
    base_url, model, tokenizer, prefix = sys.argv[1:]
    arguments = {
        "model": model,
        "base_url": f"{base_url}/completions",
        "tokenizer": tokenizer,
        "tokenizer_backend": "huggingface",
        "custom_prefix_token_id": int(prefix),
        "num_concurrent": 2,
        "batch_size": 4,
        "max_retries": 1,
    }
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(Path.cwd()), include_defaults=False),
        bootstrap_iters=0,
    )
    samples = found["samples"]["local_choices"]
    print(
        json.dumps(
            {
                "word_perplexity": found["results"]["local_perplexity"]["word_perplexity,none"],
                "accuracy": found["results"]["local_choices"]["acc,none"],
                "choices": {s["doc_id"]: [answer[0] for answer in s["filtered_resps"]] for s in samples},
            }
        )
    )


if __name__ == "__main__":
    main()
