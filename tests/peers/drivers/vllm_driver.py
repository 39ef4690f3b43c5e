"""vLLM on a CPU, offline. Arguments: checkpoint directory."""

from __future__ import annotations

import os
import sys

from protocol import serve
from vllm_dtype import dtype

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # it would leave a core idle


def main():
    import vllm

    engine = vllm.LLM(sys.argv[1], dtype=dtype(), max_model_len=2048, max_num_seqs=256, seed=0)

    def run(prompts, output_len):
        params = vllm.SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        found = engine.generate(asked, params, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in found)

    run([[1, 2, 3, 4]], 4)
    serve(run, {"vllm": f"{vllm.__version__} in {dtype()}"})


if __name__ == "__main__":  # its engine is a process that imports this file again
    main()
