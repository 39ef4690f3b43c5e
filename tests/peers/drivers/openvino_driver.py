"""OpenVINO GenAI with continuous batching. Arguments: GGUF file."""

from __future__ import annotations

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import serve

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.max_num_seqs = 256
pipeline = genai.LLMPipeline(sys.argv[1], "CPU", scheduler_config=scheduler)


def run(prompts, output_len):
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = output_len
    config.ignore_eos = True
    config.do_sample = False
    ids = np.array(prompts, dtype=np.int64)
    inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    found = pipeline.generate(inputs, config)
    return sum(len(tokens) for tokens in found.tokens)


run([[1, 2, 3, 4]], 4)
serve(run, {"openvino-genai": genai.__version__.partition("-")[0]})
