"""The default model's text, held to what transformers made of the same GGUF file."""

from __future__ import annotations

import pytest

from hundredfold.models import DEFAULT_MODEL, pull
from hundredfold_tokenizer.output.detokenizer import Detokenizer, decode
from hundredfold_tokenizer.vocabulary import Vocabulary, load_vocabulary
from support.kept_texts import SPACED, TEXTS, KeptTexts, kept_texts, random_ids


@pytest.fixture(scope="module")
def truth() -> KeptTexts:
    return kept_texts(pull(DEFAULT_MODEL).weights[0])


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(pull(DEFAULT_MODEL))


def test_texts(truth: KeptTexts, vocabulary: Vocabulary) -> None:
    for text, wanted in zip(TEXTS, truth.plain, strict=True):
        assert vocabulary.encode_text(text) == wanted, text


def test_texts_with_special_tokens(truth: KeptTexts, vocabulary: Vocabulary) -> None:
    for text, wanted in zip(TEXTS, truth.special, strict=True):
        assert vocabulary.encode_text(text, parse_special=True) == wanted, text


def test_digits_stand_alone(vocabulary: Vocabulary) -> None:
    """``smollm`` splits every digit off, as the model was trained; transformers' GGUF reader does not know
    that.
    """
    ids = vocabulary.encode_text("in 1234 and 56")
    assert [vocabulary.table.raw[i] for i in ids if vocabulary.table.raw[i].isdigit()] == [
        digit.encode() for digit in "123456"
    ]


def test_random_ids_decode_as_one_and_streamed(truth: KeptTexts, vocabulary: Vocabulary) -> None:
    """Items 79, 82, 84: any ids at all, whole and one by one, as the library decodes them, nothing cleaned
    up.
    """
    for skip, texts in ((True, truth.skipped), (False, truth.decoded)):
        for ids, wanted in zip(random_ids(vocabulary.size), texts, strict=True):
            detokenizer = Detokenizer(vocabulary.table, skip_special=skip, at_start=True)
            streamed = "".join(map(detokenizer.feed, ids)) + detokenizer.flush()
            assert decode(vocabulary.table, ids, skip_special=skip) == streamed == wanted


def test_spaces_before_punctuation_stay(truth: KeptTexts, vocabulary: Vocabulary) -> None:
    """Item 84: " ." and " 's" keep their spaces."""
    ids = vocabulary.encode_text(SPACED)
    assert decode(vocabulary.table, ids, skip_special=True) == truth.spaced == SPACED
