"""llama.cpp: its batch interface, every sequence's greedy token by argmax. Arguments: GGUF file, threads."""

from __future__ import annotations

import sys
from importlib.metadata import version

import llama_cpp as llama
import numpy as np
from protocol import serve

MOST_TOKENS = 512
"""Of one call."""

llama.llama_backend_init()


@llama.llama_log_callback
def _quiet(_level, _text, _data):
    pass


llama.llama_log_set(_quiet, None)
model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def run(prompts, output_len):
    count, length = len(prompts), len(prompts[0]) + output_len
    params = llama.llama_context_default_params()
    params.n_ctx = -(-length // 256) * 256 * count
    params.n_batch = params.n_ubatch = MOST_TOKENS
    params.n_seq_max = count
    params.n_threads = params.n_threads_batch = int(sys.argv[2])
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"no context for {count} sequences")
    batch = llama.llama_batch_init(MOST_TOKENS, 0, 1)
    try:
        last = [0] * count
        rows = [
            (token, place, number, place == len(ids) - 1)
            for number, ids in enumerate(prompts)
            for place, token in enumerate(ids)
        ]
        made = 0
        for step in range(output_len):
            for begin in range(0, len(rows), MOST_TOKENS):
                made += compute(context, batch, rows[begin : begin + MOST_TOKENS], last)
            place = len(prompts[0]) + step
            rows = [(last[number], place, number, True) for number in range(count)]
        return made
    finally:
        llama.llama_batch_free(batch)
        llama.llama_free(context)


def compute(context, batch, rows, last):
    batch.n_tokens = len(rows)
    for row, (token, place, number, wanted) in enumerate(rows):
        batch.token[row], batch.pos[row] = token, place
        batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, number, wanted
    if code := llama.llama_decode(context, batch):
        raise RuntimeError(f"llama_decode returned {code}")
    made = 0
    for row, (_token, _place, number, wanted) in enumerate(rows):
        if wanted:
            logits = llama.llama_get_logits_ith(context, row)
            last[number] = int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())
            made += 1
    return made


run([[1, 2, 3, 4]], 4)
serve(run, {"llama-cpp-python": version("llama-cpp-python")})
