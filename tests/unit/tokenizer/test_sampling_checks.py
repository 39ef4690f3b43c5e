"""SamplingParams: every bound of the contract, every default, every feature that is not there yet."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from hundredfold.rpc import RequestError
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.validation.choices import BeamSearch
from hundredfold_tokenizer.validation.sampling import check_sampling
from support.pace import at_most

NAN, INF = float("nan"), float("inf")
VOCAB = 512

BAD = [
    ({"temperature": NAN}, "sampling.temperature"),
    ({"temperature": INF}, "sampling.temperature"),
    ({"temperature": -INF}, "sampling.temperature"),
    ({"temperature": -1.0}, "sampling.temperature"),
    ({"temperature": -1e-6}, "sampling.temperature"),
    ({"temperature": 100.5}, "sampling.temperature"),
    ({"temperature": 999999.0}, "sampling.temperature"),
    ({"temperature": 3e38}, "sampling.temperature"),
    ({"top_p": NAN}, "sampling.top_p"),
    ({"top_p": 0.0}, "sampling.top_p"),
    ({"top_p": -1.0}, "sampling.top_p"),
    ({"top_p": 1.01}, "sampling.top_p"),
    ({"top_p": INF}, "sampling.top_p"),
    ({"min_p": NAN}, "sampling.min_p"),
    ({"min_p": -0.1}, "sampling.min_p"),
    ({"min_p": 1.1}, "sampling.min_p"),
    ({"presence_penalty": NAN}, "sampling.presence_penalty"),
    ({"presence_penalty": 2.1}, "sampling.presence_penalty"),
    ({"presence_penalty": -2.1}, "sampling.presence_penalty"),
    ({"frequency_penalty": NAN}, "sampling.frequency_penalty"),
    ({"frequency_penalty": 1e9}, "sampling.frequency_penalty"),
    ({"frequency_penalty": -INF}, "sampling.frequency_penalty"),
    ({"repetition_penalty": 0.0}, "sampling.repetition_penalty"),
    ({"repetition_penalty": -1.0}, "sampling.repetition_penalty"),
    ({"repetition_penalty": 1e-40}, "sampling.repetition_penalty"),
    ({"repetition_penalty": NAN}, "sampling.repetition_penalty"),
    ({"repetition_penalty": 101.0}, "sampling.repetition_penalty"),
    ({"logit_bias": {3: NAN}}, "sampling.logit_bias[3]"),
    ({"logit_bias": {3: INF}}, "sampling.logit_bias[3]"),
    ({"logit_bias": {3: 100.5}}, "sampling.logit_bias[3]"),
    ({"logit_bias": {512: 1.0}}, "sampling.logit_bias[512]"),
    ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "sampling.logit_bias"),
    ({"stop": [""]}, "sampling.stop[0]"),
    ({"stop": ["ok", ""]}, "sampling.stop[1]"),
    ({"stop": ["x"] * 17}, "sampling.stop"),
    ({"stop": ["x"] * 10_000}, "sampling.stop"),
    ({"stop": ["x" * 1025]}, "sampling.stop[0]"),
    ({"stop": ["é" * 513]}, "sampling.stop[0]"),
    ({"stop_token_ids": [512]}, "sampling.stop_token_ids[0]"),
    ({"stop_token_ids": [1, 2, 2**32 - 1]}, "sampling.stop_token_ids[2]"),
    ({"stop_token_ids": [1] * 129}, "sampling.stop_token_ids"),
    ({"bad_words": [""]}, "sampling.bad_words[0]"),
    ({"bad_words": ["x"] * 129}, "sampling.bad_words"),
    ({"bad_words": ["x" * 5000]}, "sampling.bad_words[0]"),
    ({"logprobs": 21}, "sampling.logprobs"),
    ({"logprobs": 1_000_000}, "sampling.logprobs"),
    ({"prompt_logprobs": 21}, "sampling.prompt_logprobs"),
    ({"prompt_logprobs": 2**32 - 1}, "sampling.prompt_logprobs"),
    ({"n": 0}, "sampling.n"),
    ({"n": 100_000}, "sampling.n"),
    ({"max_tokens": 0}, "sampling.max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "sampling.min_tokens"),
]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=[str(fields)[:50] for fields, _ in BAD])
def test_bad_values(fields: dict[str, Any], field: str) -> None:
    """Items 100, 106, 107, 109: INVALID_ARGUMENT naming field, value and limit, in no time."""
    message = pb.SamplingParams(**fields)
    with at_most(0.1), pytest.raises(RequestError) as refused:
        check_sampling(message, {}, VOCAB)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field} = ")
    assert len(refused.value.message) < 300


INVALID, LATER = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"n": 0}, INVALID, "sampling.n"),
        ({"n": 129}, INVALID, "sampling.n"),
        ({"length_penalty": 2.0}, INVALID, "sampling.length_penalty"),
        ({"early_stopping": True}, INVALID, "sampling.early_stopping"),
        ({"beam_width": 0}, INVALID, "sampling.beam_width"),
        ({"beam_width": 9}, INVALID, "sampling.beam_width"),
        ({"beam_width": 2, "n": 3}, INVALID, "sampling.n"),
        ({"beam_width": 2, "length_penalty": float("nan")}, INVALID, "sampling.length_penalty"),
        ({"beam_width": 2, "length_penalty": 11.0}, INVALID, "sampling.length_penalty"),
        ({"beam_width": 2, "temperature": 0.7}, INVALID, "sampling.temperature"),
        ({"beam_width": 2, "top_p": 0.9}, INVALID, "sampling.top_p"),
        ({"beam_width": 2, "top_k": 40}, INVALID, "sampling.top_k"),
        ({"beam_width": 2, "min_p": 0.1}, INVALID, "sampling.min_p"),
        ({"beam_width": 2, "max_tokens": 0, "prompt_logprobs": 0}, INVALID, "sampling.max_tokens"),
        ({"beam_width": 2, "stop": ["."]}, LATER, "sampling.stop"),
        ({"beam_width": 1, "logprobs": 0}, LATER, "sampling.logprobs"),
    ],
)
def test_choices_and_beams_that_cannot_be(fields: dict[str, Any], code: grpc.StatusCode, field: str) -> None:
    """Item 106: what contradicts itself, or a search that makes no random draws, is told so."""
    with pytest.raises(RequestError) as refused:
        check_sampling(pb.SamplingParams(**fields), {}, VOCAB)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert field in refused.value.message


def test_beams_take_no_draws_from_the_checkpoint() -> None:
    """The checkpoint's temperature is for sampling; its penalty changes the scores of beams, too."""
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
    checked = check_sampling(pb.SamplingParams(beam_width=4, n=2), defaults, VOCAB)
    assert (checked.temperature, checked.top_p, checked.top_k, checked.min_p) == (0.0, 1.0, 0, 0.0)
    assert checked.from_checkpoint == ("repetition_penalty",)
    assert checked.beams == BeamSearch(4, 1.0, early_stopping=False)


def test_the_terms_of_a_beam_search_can_be_sent_back() -> None:
    """A client that resumes sends what the started event told."""
    checked = check_sampling(pb.SamplingParams(beam_width=4, n=2, length_penalty=0.5), {}, VOCAB)
    echoed = check_sampling(checked.echo(16), {}, VOCAB)
    assert (echoed.beams, echoed.n, echoed.seed) == (checked.beams, 2, checked.seed)
    plain = check_sampling(pb.SamplingParams(n=3), {}, VOCAB)
    assert check_sampling(plain.echo(16), {}, VOCAB).beams is None
    check_sampling(pb.SamplingParams(length_penalty=1.0, early_stopping=False), {}, VOCAB)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0}, {"temperature": 1e-7}, {"temperature": 100.0}, {"top_p": 1e-9}, {"top_p": 1.0},
        {"min_p": 0.0}, {"min_p": 1.0}, {"top_k": 2**32 - 1}, {"repetition_penalty": 100.0}, {"n": 1},
        {"repetition_penalty": 0.001},
        {"presence_penalty": -2.0}, {"logit_bias": {511: -100.0}}, {"stop": ["x" * 1024] * 16},
        {"max_tokens": 0, "prompt_logprobs": 0}, {"max_tokens": 4, "min_tokens": 4}, {"logprobs": 20},
        {"seed": 2**64 - 1}, {"max_tokens": 2**32 - 1},
    ],
)  # fmt: skip
def test_values_at_the_edge_are_taken(fields: dict[str, Any]) -> None:
    """Items 100, 101: the ends of every range, tiny temperatures and top_p among them."""
    check_sampling(pb.SamplingParams(**fields), {}, VOCAB)


def test_unset_zero_and_one_differ() -> None:
    """Item 99: unset temperature takes the checkpoint's, 0 and 1 are 0 and 1."""
    defaults = {"temperature": 0.6, "top_k": 40, "max_tokens": 99}
    unset = check_sampling(pb.SamplingParams(), defaults, VOCAB)
    assert (unset.temperature, unset.top_k, unset.max_tokens) == (0.6, 40, 99)
    assert set(unset.from_checkpoint) == {"temperature", "top_k", "max_tokens"}
    zero = check_sampling(pb.SamplingParams(temperature=0.0, top_k=0, max_tokens=5), defaults, VOCAB)
    assert (zero.temperature, zero.top_k, zero.max_tokens, zero.from_checkpoint) == (0.0, 0, 5, ())
    one = check_sampling(pb.SamplingParams(temperature=1.0), defaults, VOCAB)
    assert one.temperature == 1.0
    plain = check_sampling(pb.SamplingParams(), {}, VOCAB)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p) == (1.0, 1.0, 0, 0.0)
    assert plain.max_tokens is None
    assert plain.skip_special_tokens
    assert plain.add_special_tokens


def test_seeds_are_drawn_when_unset() -> None:
    """Item 111: no two requests, and no two servers, get the same seed by default; a stated one is kept."""
    drawn = {check_sampling(pb.SamplingParams(), {}, VOCAB).seed for _ in range(100)}
    assert len(drawn) == 100
    assert check_sampling(pb.SamplingParams(seed=0), {}, VOCAB).seed == 0


def test_echo_tells_everything() -> None:
    sampling = check_sampling(
        pb.SamplingParams(stop=["x"], logprobs=3, logit_bias={7: 1.5}), {"top_p": 0.9}, VOCAB
    )
    echo = sampling.echo(17)
    assert echo.max_tokens == 17
    assert echo.seed == sampling.seed
    assert echo.top_p == pytest.approx(0.9)
    assert list(echo.stop) == ["x"]
    assert echo.logprobs == 3
    assert not echo.HasField("prompt_logprobs")
    assert dict(echo.logit_bias) == {7: 1.5}
    check_sampling(echo, {}, VOCAB)  # what the server tells is what it takes
