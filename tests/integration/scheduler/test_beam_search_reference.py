"""The choice among beams against transformers' own beam search, over a made-up model of log probabilities."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from hundredfold_scheduler.core.beam_search import BeamSearch, BeamTerms, Hypothesis
from hundredfold_scheduler.core.step import Candidates, EndReason

VOCAB = 40


def logprobs_after(tokens: tuple[int, ...], stops: tuple[int, ...], lean: float) -> np.ndarray:
    """float32[VOCAB], decided by the tokens alone; ``lean`` makes stop ids likelier."""
    rng = np.random.default_rng([len(tokens), *tokens])
    logits = rng.normal(size=VOCAB) * 2
    logits[list(stops)] += lean
    logits -= logits.max()
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def search(terms: BeamTerms, stops: tuple[int, ...], lean: float, max_tokens: int) -> list[Hypothesis]:
    """Our search to its end."""
    state = BeamSearch(terms, frozenset(stops))
    outputs = [array("I")]
    for _ in range(max_tokens):
        candidates = []
        for output in outputs:
            values = logprobs_after(tuple(output), stops, lean)
            best = np.argsort(-values, kind="stable")[: state.num_candidates]
            candidates.append(Candidates(best.tolist(), values[best].tolist()))
        going_on = state.advance(outputs, candidates, max_tokens)
        outputs = [outputs[found.beam] + array("I", [found.token_id]) for found in going_on]
        if state.over:
            return state.complete
    raise AssertionError("never over")


@pytest.fixture(scope="module")
def stand_in_model() -> Any:
    """A transformers model whose logits are the made-up log probabilities."""
    torch = pytest.importorskip("torch")
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class MadeUp(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig
        main_input_name = "input_ids"

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            self.unused = torch.nn.Parameter(torch.zeros(1))
            self.stops: tuple[int, ...] = ()
            self.lean = 0.0

        def forward(self, input_ids: Any, **_: Any) -> CausalLMOutput:
            rows = [logprobs_after(tuple(row[1:]), self.stops, self.lean) for row in input_ids.tolist()]
            return CausalLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None, :])

        def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

    return MadeUp(PretrainedConfig(vocab_size=VOCAB, is_encoder_decoder=False, num_hidden_layers=1))


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0, 0.6])
@pytest.mark.parametrize(("stops", "lean"), [((), 0.0), ((3,), 0.0), ((3,), 3.0), ((3, 7, 9), 1.0)])
@pytest.mark.parametrize("width", [2, 4, 7])
def test_the_same_beams_as_transformers(
    stand_in_model: Any,
    width: int,
    stops: tuple[int, ...],
    lean: float,
    length_penalty: float,
    early_stopping: bool,
) -> None:
    """The same sequences in the same order with the same scores, stop ids rare, common, several or none."""
    import torch

    max_tokens = 9
    ours = search(BeamTerms(width, length_penalty, early_stopping), stops, lean, max_tokens)
    stand_in_model.stops, stand_in_model.lean = stops, lean
    found = stand_in_model.generate(
        torch.tensor([[1]]),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=max_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        eos_token_id=list(stops) or None,
        pad_token_id=1,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for hypothesis, row, score in zip(
        ours, found.sequences.tolist(), found.sequences_scores.tolist(), strict=True
    ):
        output = hypothesis.output.tolist()
        assert output == row[1 : 1 + len(output)]
        assert set(row[1 + len(output) :]) <= {1}
        assert hypothesis.score == pytest.approx(score, rel=1e-5)
        stopped = output[-1] in stops
        assert hypothesis.reason is (EndReason.STOP if stopped else EndReason.LENGTH)
        assert hypothesis.stop_token_id == (output[-1] if stopped else None)


def test_extreme_penalties_are_numbers() -> None:
    """A length to the power of ten, or of minus ten, overflows nothing."""
    for penalty in (10.0, -10.0):
        found = search(BeamTerms(2, penalty, early_stopping=False), (3,), 0.0, 12)
        assert all(hypothesis.score <= 0 for hypothesis in found)
