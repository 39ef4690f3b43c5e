"""Incremental detokenizing: never half a character, the same text as at once, the same work for every
token.
"""

from __future__ import annotations

import time

import pytest

from hundredfold_tokenizer.output.detokenizer import Detokenizer, decode
from hundredfold_tokenizer.vocabulary import Vocabulary

HARD = "가😀é"


def byte_ids(vocabulary: Vocabulary, text: str) -> list[int]:
    """One id per byte, as a model may emit them."""
    raw = list(vocabulary.table.raw)
    return [raw.index(bytes([byte])) for byte in text.encode()]


def stream(vocabulary: Vocabulary, ids: list[int], *, skip: bool = True, at_start: bool = False) -> list[str]:
    detokenizer = Detokenizer(vocabulary.table, skip_special=skip, at_start=at_start)
    return [*map(detokenizer.feed, ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_characters_split_over_tokens(kind: str, request: pytest.FixtureRequest) -> None:
    """Item 79: one byte per token; nothing is lost and no piece holds U+FFFD."""
    vocabulary = request.getfixturevalue(kind)
    pieces = stream(vocabulary, byte_ids(vocabulary, HARD))
    assert "".join(pieces) == HARD
    assert not any("\ufffd" in piece for piece in pieces)
    assert [len(piece) for piece in pieces] == [0, 0, 1, 0, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_cut_inside_a_character(kind: str, request: pytest.FixtureRequest) -> None:
    """Item 80: half an emoji at the end is one U+FFFD, streamed and whole alike."""
    vocabulary = request.getfixturevalue(kind)
    ids = byte_ids(vocabulary, "😀")[:2]
    assert stream(vocabulary, ids) == ["", "", "\ufffd"]
    assert decode(vocabulary.table, ids, skip_special=True) == "\ufffd"


def test_bytes_that_are_no_text(bpe: Vocabulary) -> None:
    raw = list(bpe.table.raw)
    ids = [raw.index(b"\xff"), raw.index(b"a"), raw.index(b"\x80"), raw.index(b"\xe2"), raw.index(b"b")]
    assert "".join(stream(bpe, ids)) == "\ufffda\ufffd\ufffdb" == decode(bpe.table, ids, skip_special=True)


def test_ids_without_a_token_are_nothing(bpe: Vocabulary) -> None:
    """Item 82: ids beyond the vocabulary, also between the bytes of a character."""
    first, *rest = byte_ids(bpe, "é")
    ids = [10_000, first, 4_000_000_000, *rest]
    assert "".join(stream(bpe, ids)) == "é" == decode(bpe.table, ids, skip_special=True)


def test_special_tokens(bpe: Vocabulary) -> None:
    hello = bpe.encode_text("hello")
    ids = [1, *hello, 2]
    assert "".join(stream(bpe, ids, skip=True)) == "hello"
    assert "".join(stream(bpe, ids, skip=False)) == "<|im_start|>hello<|im_end|>"
    first, second = byte_ids(bpe, "é")
    assert "".join(stream(bpe, [first, 2, second], skip=True)) == "é"
    assert "".join(stream(bpe, [first, 2, second], skip=False)) == "\ufffd<|im_end|>\ufffd"


def test_sentencepiece_space_after_a_prompt(spm: Vocabulary) -> None:
    """Item 83: what follows a prompt keeps its space; streamed == decode(prompt +
    out)[len(decode(prompt)):].
    """
    prompt = spm.encode_text("hello")
    out = spm.encode_text("Hello world again", add_special=False)
    whole = decode(spm.table, [*prompt, *out], skip_special=True)
    before = decode(spm.table, prompt, skip_special=True)
    assert "".join(stream(spm, out)) == whole[len(before) :] == " Hello world again"


def test_sentencepiece_space_at_the_start(spm: Vocabulary) -> None:
    """Item 83: with nothing but BOS before, the space that SentencePiece put there goes."""
    ids = spm.encode_text("Hello world")
    assert (
        "".join(stream(spm, ids, at_start=True)) == "Hello world" == decode(spm.table, ids, skip_special=True)
    )
    double = spm.encode_text("  hello", add_special=False)
    assert "".join(stream(spm, double, at_start=True)) == decode(spm.table, double, skip_special=True)


def test_no_clean_up_of_spaces(bpe: Vocabulary) -> None:
    """Item 84: "Hi", " .", " It", " 's" give the same text both ways, spaces included."""
    ids = [i for word in ("Hi", " .", " It", " 's", " n't") for i in bpe.encode_text(word)]
    assert "".join(stream(bpe, ids)) == "Hi . It 's n't" == decode(bpe.table, ids, skip_special=True)


def test_work_per_token_does_not_grow(bpe: Vocabulary) -> None:
    """Item 95, detokenizer: the last thousand of 32k tokens cost what the first thousand did."""
    ids = (bpe.encode_text("hello world 가😀 again ") * 4000)[:32_000]
    detokenizer = Detokenizer(bpe.table, skip_special=True, at_start=False)
    costs = []
    for start in range(0, len(ids), 1000):
        began = time.process_time()
        for token_id in ids[start : start + 1000]:
            detokenizer.feed(token_id)
        costs.append(time.process_time() - began)
    assert min(costs[-8:]) <= 1.5 * max(costs[:8])
