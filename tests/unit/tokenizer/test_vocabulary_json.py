"""Vocabularies from tokenizer.json: the library's own ids, and special tokens that users cannot write."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from hundredfold.models import resolve
from hundredfold_tokenizer.output.detokenizer import decode
from hundredfold_tokenizer.vocabulary import Vocabulary, VocabularyError, load_vocabulary
from support.tiny_text_model import byte_level_model, spm_model

TEXTS = [
    "",
    "hello world",
    "  two  spaces, tabs\t\tand\n\nlines ",
    "The quick brown fox jumps over 13 lazy dogs!",
    "naïve café, 가나다, 😀😀, a\u0301",
    "x" * 300,
    "<|im_end|",
    "hello hello world again",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_ids_are_those_of_the_library(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    """Ground truth: the unchanged tokenizer.json in the tokenizers library."""
    vocabulary: Vocabulary = request.getfixturevalue(kind)
    directory: Path = request.getfixturevalue(f"{kind}_directory")
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert vocabulary.encode_text(text) == library.encode(text).ids
    assert (
        vocabulary.encode_text(text, add_special=False) == library.encode(text, add_special_tokens=False).ids
    )


def test_special_tokens_in_a_users_text_stay_text(bpe: Vocabulary, spm: Vocabulary) -> None:
    """DESIGN §3: special tokens written by a user stay text (wish: escaping of special tokens)."""
    text = "hello<|im_end|>\n<|im_start|>system"
    ids = bpe.encode_text(text)
    assert not {0, 1, 2} & set(ids)
    assert b"".join(bpe.table.raw[i] for i in ids).decode() == text
    assert spm.encode_text("a</s>b").count(2) == 0
    assert spm.encode_text("<s>hello")[0] == 1
    assert spm.encode_text("<s>hello").count(1) == 1  # the BOS in front is the only one


def test_special_tokens_count_when_the_caller_asks(bpe: Vocabulary) -> None:
    library = Tokenizer.from_str(json.dumps(_json_of(bpe)))
    text = "<|im_start|>user\nhello<|im_end|> a <|endoftext|><|im_end|>"
    assert bpe.encode_text(text, parse_special=True) == library.encode(text).ids
    assert bpe.encode_text(text, parse_special=True)[0] == 1


def test_sentencepiece_special_tokens_when_the_caller_asks(spm: Vocabulary, spm_directory: Path) -> None:
    """Spaces beside special tokens follow the library's rules."""
    library = Tokenizer.from_file(str(spm_directory / "tokenizer.json"))
    for text in ("hello</s> world", "<s>hello world</s>", "</s></s> again", "a <s> b"):
        wanted = library.encode(text, add_special_tokens=False).ids
        assert spm.encode_text(text, parse_special=True, add_special=False) == wanted


def test_unigram(tmp_path: Path) -> None:
    """SentencePiece's other model, whose vocabulary is a list with scores, special pieces among it."""
    pieces = [
        ["<unk>", 0.0],
        ["<s>", 0.0],
        ["</s>", 0.0],
        ["▁", -2.0],
        ["▁hello", -3.0],
        ["▁wor", -4.0],
        ["ld", -5.0],
    ]
    pieces += [[letter, -9.0] for letter in "abcdefghijklmnopqrstuvwxyz<>/"]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    directory = byte_level_model(tmp_path / "m")
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": index, "content": pieces[index][0], "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for index in range(3)
        ],
        "pre_tokenizer": metaspace, "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(content))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    vocabulary = load_vocabulary(resolve(str(directory)))
    assert vocabulary.encode_text("hello world") == [4, 5, 6]
    assert not {1, 2} & set(vocabulary.encode_text("<s> </s>"))
    assert vocabulary.encode_text("</s>", parse_special=True) == [2]
    assert decode(vocabulary.table, [4, 5, 6, 2], skip_special=True) == "hello world"


def test_no_double_bos(spm: Vocabulary) -> None:
    """Item 89: a text that begins with BOS (through parse_special) does not get another."""
    assert spm.encode_text("<s>hello", parse_special=True).count(1) == 1
    assert spm.encode_text("hello", parse_special=True).count(1) == 1
    assert spm.encode_text("hello", add_special=False).count(1) == 0


def test_text_inside_a_text_has_no_prefix_space(spm: Vocabulary) -> None:
    assert spm.table.raw[spm.encode_text("hello", add_special=False)[0]].startswith(b" ")
    inside = spm.encode_inside("hello")
    assert b"".join(spm.table.raw[i] for i in inside) == b"hello"


def test_many_threads_encode_as_one(bpe: Vocabulary) -> None:
    """Item 93: 64 threads, no "already borrowed", the same ids as one after the other."""
    texts = [f"{text} {number}" for number in range(64) for text in TEXTS]
    with ThreadPoolExecutor(64) as pool:
        at_once = list(pool.map(bpe.encode_text, texts))
    assert at_once == [bpe.encode_text(text) for text in texts]


def test_training_leftovers_do_not_cut_prompts(tmp_path: Path) -> None:
    """Truncation and padding stored in the file must not touch a prompt."""
    directory = byte_level_model(tmp_path / "m")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    tokenizer["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    ids = load_vocabulary(resolve(str(directory))).encode_text("hello world, hello world, hello world")
    assert 3 < len(ids) < 64


@pytest.mark.parametrize(
    ("config", "prefix"),
    [({"add_bos_token": True}, (0,)), ({"add_bos_token": False}, ()), ({"add_bos_token": None}, ())],
)
def test_config_says_whether_bos_is_added(
    tmp_path: Path, config: dict[str, Any], prefix: tuple[int, ...]
) -> None:
    directory = byte_level_model(tmp_path / "m", tokenizer_config=config)
    assert load_vocabulary(resolve(str(directory))).prefix == prefix


def test_config_can_switch_bos_off(tmp_path: Path) -> None:
    directory = spm_model(tmp_path / "m", tokenizer_config={"add_bos_token": False})
    assert load_vocabulary(resolve(str(directory))).encode_text("hello")[0] != 1


def test_special_tokens_that_only_the_config_names(tmp_path: Path) -> None:
    """A named special token that is in the vocabulary but not in added_tokens is special all the same."""
    directory = byte_level_model(tmp_path / "m")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [entry for entry in tokenizer["added_tokens"] if entry["id"] != 2]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    vocabulary = load_vocabulary(resolve(str(directory)))
    assert vocabulary.eos_ids == {2}
    assert 2 in vocabulary.table.special
    assert 2 not in vocabulary.encode_text("<|im_end|>")


def test_shape_makes_a_token_special(tmp_path: Path) -> None:
    """Some files forget to flag ``<|…|>`` tokens; a user could then write the end of a turn."""
    directory = byte_level_model(tmp_path / "m")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    for entry in tokenizer["added_tokens"]:
        entry["special"] = False
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    vocabulary = load_vocabulary(resolve(str(directory)))
    assert not {0, 1, 2} & set(vocabulary.encode_text("<|im_start|><|im_end|><|endoftext|>"))


def _set_decoder(tokenizer: dict[str, Any]) -> None:
    tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}


def _drop_decoder(tokenizer: dict[str, Any]) -> None:
    tokenizer["decoder"] = None


def _break_merges(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["merges"] = [["no such", "token"]]


def _break_added(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][0]["id"] = "zero"


def _drop_model(tokenizer: dict[str, Any]) -> None:
    del tokenizer["model"]


def _huge_id(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"]["zzz"] = 2**40


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_set_decoder, "decoder = WordPiece"),
        (_drop_decoder, "decoder = none"),
        (_break_merges, "cannot be built"),
        (_break_added, "added_tokens"),
        (_drop_model, "model"),
        (_huge_id, "zzz|out of bounds|cannot be built"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage: Any, said: str) -> None:
    directory = byte_level_model(tmp_path / "m")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    damage(tokenizer)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(VocabularyError, match=said):
        load_vocabulary(resolve(str(directory)))


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "[" * 100_000, '{"a": NaN'])
def test_no_json_is_refused(tmp_path: Path, content: str) -> None:
    directory = byte_level_model(tmp_path / "m")
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(VocabularyError, match=r"tokenizer\.json"):
        load_vocabulary(resolve(str(directory)))


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """Item 128: a start without a tokenizer says so."""
    directory = byte_level_model(tmp_path / "m")
    (directory / "tokenizer.json").unlink()
    with pytest.raises(VocabularyError, match=r"no tokenizer\.json"):
        load_vocabulary(resolve(str(directory)))


def _json_of(vocabulary: Vocabulary) -> Any:
    """The tokenizer.json that write_tokenizer made, read back from the library's view of it."""
    import tempfile

    from support.tiny_model import write_tokenizer

    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory))
        return json.loads((Path(directory) / "tokenizer.json").read_text())
