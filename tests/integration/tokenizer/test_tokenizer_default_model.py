"""The default model's text, held to transformers reading the same GGUF file."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hundredfold.models import DEFAULT_MODEL, pull
from hundredfold_tokenizer.output.detokenizer import Detokenizer, decode
from hundredfold_tokenizer.vocabulary import Vocabulary, load_vocabulary

TEXTS = [
    "Hello, world!",
    "  leading and trailing  ",
    "Once upon a time there was a little fox who said: \"It's mine, isn't it?\"",
    "def f(x):\n    return x ** 2  # square\n\n\n",
    "naïve café Ünïcode 中文字符 가나다라 русский العربية 😀👩‍👩‍👧",
    "a\u0301 e\u0301 \u200b zero width",
    "tabs\tand\r\nwindows lines\r\n",
    "$3.50 + 20% = x_y-z/w @home #tag ^_^ ~`|",
    "ALLCAPS CamelCase snake_case kebab-case",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
]


@pytest.fixture(scope="module")
def truth() -> Any:
    from support.reference import load_tokenizer

    return load_tokenizer(str(pull(DEFAULT_MODEL).weights[0]))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(pull(DEFAULT_MODEL))


def test_texts(truth: Any, vocabulary: Vocabulary) -> None:
    for text in TEXTS:
        wanted = truth.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert vocabulary.encode_text(text) == wanted, text


def test_texts_with_special_tokens(truth: Any, vocabulary: Vocabulary) -> None:
    for text in TEXTS:
        wanted = truth.encode(text, add_special_tokens=False)
        assert vocabulary.encode_text(text, parse_special=True) == wanted, text


def test_digits_stand_alone(vocabulary: Vocabulary) -> None:
    """``smollm`` splits every digit off, as the model was trained; transformers' GGUF reader does not know
    that.
    """
    ids = vocabulary.encode_text("in 1234 and 56")
    assert [vocabulary.table.raw[i] for i in ids if vocabulary.table.raw[i].isdigit()] == [
        digit.encode() for digit in "123456"
    ]


def test_random_ids_decode_as_one_and_streamed(truth: Any, vocabulary: Vocabulary) -> None:
    """Items 79, 82, 84: any ids at all, whole and one by one, as the library decodes them, nothing cleaned
    up.
    """
    rng = random.Random(11)
    for _ in range(200):
        ids = [rng.randrange(vocabulary.size) for _ in range(rng.randint(1, 60))]
        for skip in (True, False):
            wanted = truth.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            detokenizer = Detokenizer(vocabulary.table, skip_special=skip, at_start=True)
            streamed = "".join(map(detokenizer.feed, ids)) + detokenizer.flush()
            assert decode(vocabulary.table, ids, skip_special=skip) == streamed == wanted


def test_spaces_before_punctuation_stay(truth: Any, vocabulary: Vocabulary) -> None:
    """Item 84: " ." and " 's" keep their spaces."""
    ids = vocabulary.encode_text("Hi . It 's n't")
    assert decode(vocabulary.table, ids, skip_special=True) == "Hi . It 's n't"
    assert truth.decode(ids, clean_up_tokenization_spaces=False) == "Hi . It 's n't"
