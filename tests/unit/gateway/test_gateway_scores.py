"""Scores beside their tokens: names, places in the text, prompts before answers, parts of characters."""

from __future__ import annotations

import pytest

from hundredfold.client import Answer, Choice, Delta, Finished, PromptLogprobs, Started
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_gateway.openai.chunks import ChatChunks, CompletionChunks
from hundredfold_gateway.openai.head import Head
from hundredfold_gateway.openai.scores import CompletionScores, chat_scores, prompt_scores
from hundredfold_gateway.openai.usage import usage_of
from hundredfold_gateway.openai.whole import Echo, whole_chat, whole_completion


def entry(
    raw: bytes, logprob: float = -1.0, *top: tuple[bytes, float], hidden: bool = False
) -> pb.TokenLogprobs:
    def token(raw: bytes, logprob: float) -> pb.TokenLogprob:
        text = raw.decode("utf-8", "replace")
        return pb.TokenLogprob(text=text, raw=b"" if hidden else raw, logprob=logprob)

    return pb.TokenLogprobs(token=token(raw, logprob), top=[token(*rival) for rival in top])


def test_places_count_characters_not_bytes():
    scores = CompletionScores()
    written = scores.write([entry("é".encode()), entry("北京".encode()), entry(b"x")])
    assert written["text_offset"] == [0, 1, 3]
    assert scores.write([entry(b"y")])["text_offset"] == [4]


def test_parts_of_a_character_have_names_of_their_own_and_one_place():
    emoji = "😀".encode()
    written = CompletionScores(5).write([entry(emoji[:2]), entry(emoji[2:]), entry(b"!")])
    assert written["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "!"]
    assert written["text_offset"] == [5, 5, 6]


def test_the_chosen_token_is_among_the_best_and_never_hides_a_likelier_one():
    best = CompletionScores().write([entry(b"a", -3.0, (b"b", -0.5), (b"c", -1.5))])["top_logprobs"]
    assert best == [{"b": -0.5, "c": -1.5, "a": -3.0}]
    same = CompletionScores().write([entry(b"a", -3.0, (b"a", -0.5))])["top_logprobs"]
    assert same == [{"a": -0.5}]


def test_a_prompts_tokens_stand_where_they_are():
    text = "Hello, world"
    entries = [pb.TokenLogprobs(), entry(b",", -0.25, (b",", -0.25)), entry(b" world", -2.0, (b"!", -1.0))]
    written = prompt_scores(text, "Hello", entries)
    assert written == {
        "tokens": ["Hello", ",", " world"],
        "token_logprobs": [None, -0.25, -2.0],
        "top_logprobs": [None, {",": -0.25}, {"!": -1.0, " world": -2.0}],
        "text_offset": [0, 5, 6],
    }


@pytest.mark.parametrize(
    ("text", "parts", "name"),
    [
        ("日本", [b"\xe6\x97", b"\xa5", "本".encode()], "bytes:\\xe6\\x97"),
        ("日", [b"\xe6", b"\x97", b"\xa5"], "bytes:\\xe6"),
        ("a😀<s>", [b"a\xf0\x9f", b"\x98\x80", b""], "bytes:\\x61\\xf0\\x9f"),
        ("日本", ["日".encode(), "本".encode()], "日"),
        ("\ufffd", [b"\xe6\x97"], "\ufffd"),  # a prompt of ids that ends there: nothing tells its bytes
        ("\ufffdx", ["\ufffd".encode(), b"x"], "\ufffd"),
    ],
)
def test_a_prompt_may_begin_with_part_of_a_character(text: str, parts: list[bytes], name: str):
    entries = [pb.TokenLogprobs(), *map(entry, parts[1:])]
    written = prompt_scores(text, parts[0].decode("utf-8", "replace"), entries)
    assert written["tokens"][0] == name


def test_a_beginning_of_sequence_token_takes_no_place():
    entries = [pb.TokenLogprobs(), entry(b"Hi"), entry(b"<eos>", hidden=True)]
    assert prompt_scores("Hi", "<s>", entries)["text_offset"] == [0, 0, 2]


def finished(tokens: int, index: int = 0, cached: int = 0) -> Finished:
    usage = pb.Usage(prompt_tokens=3, completion_tokens=tokens, cached_tokens=cached)
    return Finished(index=index, reason=pb.FINISH_REASON_STOP, stop_token_id=2, usage=usage)


def answer(*texts: str) -> Answer:
    started = Started(model="m", prompt_tokens=3)
    prompt = PromptLogprobs(tokens=[pb.TokenLogprobs(), entry(b"b"), entry(b"c")])
    choices = tuple(
        Choice(text, (1,), (entry(text.encode()),), finished(1, index)) for index, text in enumerate(texts)
    )
    return Answer(started, choices, prompt)


def test_choices_are_numbered_prompt_by_prompt():
    body = whole_completion(
        Head("cmpl"), [answer("x", "y"), answer("z", "w")], [Echo("abc", "a")] * 2, scores=True
    )
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "abcx"),
        (1, "abcy"),
        (2, "abcz"),
        (3, "abcw"),
    ]
    assert body["choices"][2]["logprobs"]["tokens"] == ["a", "b", "c", "z"]
    assert body["choices"][2]["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 4
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["stop_reason"]) == ("stop", 2)


def test_streamed_scores_are_the_whole_ones():
    whole = whole_completion(Head("cmpl"), [answer("x", "y")], [Echo("abc", "a")], scores=True)
    chunks = CompletionChunks(Head("cmpl"), [Echo("abc", "a")], 2, scores=True, include_usage=True)
    events = [Started(model="m", prompt_tokens=3), answer("x").prompt_logprobs]
    events += [
        Delta(index=i, text=t, token_ids=[1], logprobs=[entry(t.encode())]) for i, t in ((1, "y"), (0, "x"))
    ]
    events += [finished(1, 0), finished(1, 1)]
    made = [chunk for event in events for chunk in chunks.take(0, event)]
    *_, last = [*made, *chunks.close()]
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        pieces = [c["choices"][0] for c in made if c["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        scored = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
        for name, values in choice["logprobs"].items():
            assert [value for part in scored for value in part[name]] == values
        assert [piece["finish_reason"] for piece in pieces] == [None, None, "stop"]


def test_chat_chunks_begin_with_a_role_for_each_choice():
    chunks = ChatChunks(Head("chatcmpl"), scores=False, include_usage=False)
    events = [Delta(index=1, text="b"), Delta(index=0, text="a"), Delta(index=1, text=""), finished(1, 1)]
    made = [chunk["choices"][0] for event in events for chunk in chunks.take(0, event)]
    assert [(c["index"], c["delta"]) for c in made] == [
        (1, {"role": "assistant", "content": ""}),
        (1, {"content": "b"}),
        (0, {"role": "assistant", "content": ""}),
        (0, {"content": "a"}),
        (1, {}),
    ]


def test_bytes_of_a_chats_tokens_join_to_its_text():
    emoji = "😀".encode()
    content = chat_scores(
        [entry(emoji[:3], -0.5, (b"x", -1.0)), entry(emoji[3:]), entry(b"<end>", hidden=True)]
    )
    assert b"".join(bytes(part["bytes"]) for part in content).decode() == "😀"
    assert content[0]["top_logprobs"] == [{"token": "x", "logprob": -1.0, "bytes": [120]}]
    body = whole_chat(Head("chatcmpl"), answer("x"), scores=True)
    assert body["choices"][0]["logprobs"]["content"][0]["token"] == "x"


def test_a_prompt_of_several_choices_counts_once():
    usage = usage_of(
        [
            Answer(
                Started(prompt_tokens=9),
                (
                    Choice("a", (), (), finished(4, 0, cached=2)),
                    Choice("b", (), (), finished(5, 1, cached=8)),
                ),
                PromptLogprobs(),
            )
        ]
    )
    assert usage.body() == {
        "prompt_tokens": 9,
        "completion_tokens": 9,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
