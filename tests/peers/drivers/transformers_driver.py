"""transformers: ``generate`` of a whole batch at once. Arguments: checkpoint directory, type."""

from __future__ import annotations

import sys

import torch
import transformers
from protocol import serve

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2]]
).eval()


def run(prompts, output_len):
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=output_len,
            max_new_tokens=output_len,
            pad_token_id=0,
        )
    return (out.shape[1] - ids.shape[1]) * len(prompts)


run([[1, 2, 3, 4]], 4)
serve(run, {"transformers": transformers.__version__, "torch": torch.__version__})
