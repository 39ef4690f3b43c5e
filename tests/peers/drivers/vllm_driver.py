"""vLLM on a CPU, offline. Arguments: checkpoint directory."""

from __future__ import annotations

import sys

from protocol import serve
from vllm_settings import dtype, start_over


def main():
    start_over()
    import vllm

    engine = vllm.LLM(
        sys.argv[1],
        dtype=dtype(),
        max_model_len=2048,
        max_num_seqs=256,
        enable_prefix_caching=False,  # there is none to find
        seed=0,
    )

    def run(prompts, output_len):
        params = vllm.SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        found = engine.generate(asked, params, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in found)

    run([[1, 2, 3, 4]], 4)
    serve(run, {"vllm": f"{vllm.__version__} in {dtype()}"})


if __name__ == "__main__":  # its engine is a process that imports this file again
    main()
