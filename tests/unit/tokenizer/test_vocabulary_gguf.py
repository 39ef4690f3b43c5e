"""Vocabularies from GGUF metadata."""

from __future__ import annotations

import heapq
import random
from pathlib import Path
from typing import Any

import pytest

from hundredfold.models import CheckpointError, resolve
from hundredfold_tokenizer.output.detokenizer import decode
from hundredfold_tokenizer.vocabulary import Vocabulary, VocabularyError, load_vocabulary
from hundredfold_tokenizer.vocabulary.pre_tokenizers import PRE_TOKENIZERS
from support.tiny_gguf import CONTROL, NORMAL, UNUSED, USER_DEFINED, bpe_keys, spm_keys, write_gguf


def load(tmp_path: Path, keys: dict[str, Any], **how: Any) -> Vocabulary:
    return load_vocabulary(resolve(str(write_gguf(tmp_path / "model.gguf", keys, **how))))


def spelt(vocabulary: Vocabulary, text: str, **how: Any) -> list[bytes]:
    return [vocabulary.table.raw[i] for i in vocabulary.encode_text(text, **how)]


def test_merges_and_bytes(tmp_path: Path) -> None:
    vocabulary = load(tmp_path, bpe_keys())
    assert spelt(vocabulary, "hello world") == [b"hello", b" world"]
    assert spelt(vocabulary, "é") == [b"\xc3", b"\xa9"]
    assert vocabulary.eos_ids == {2}
    assert vocabulary.bos_id == 1
    assert vocabulary.names["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", [b"x", b" ", b"1", b"2", b"1", b"2"]),  # every digit by itself
        ("gpt-2", [b"x", b" 1", b"2", b"12"]),  # digits together with the space before them
        ("llama-bpe", [b"x", b" ", b"12", b"1", b"2"]),  # up to three digits, no space
        ("qwen2", [b"x", b" ", b"1", b"2", b"1", b"2"]),
        ("default", [b"x", b" ", b"12", b"1", b"2"]),
    ],
)
def test_pre_tokenizers_split_numbers_their_way(tmp_path: Path, pre: str, pieces: list[bytes]) -> None:
    vocabulary = load(tmp_path, bpe_keys(pre=pre, add_bos_token=False))
    assert spelt(vocabulary, "x 1212") == pieces


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_every_byte(tmp_path: Path, pre: str) -> None:
    """Whatever the splits are, the pieces put together are the text."""
    vocabulary = load(tmp_path, bpe_keys(pre=pre, add_bos_token=False))
    text = "I'M it's 123456 (naïve)  \n\n\t x_y  가나😀 中文。 $5.00!? Ünïcode  "
    assert b"".join(spelt(vocabulary, text)).decode() == text


def test_missing_pre_means_default_and_unknown_is_refused(tmp_path: Path) -> None:
    assert spelt(load(tmp_path, bpe_keys(pre=None)), "hello") == [b"hello"]
    with pytest.raises(VocabularyError, match=r"tokenizer\.ggml\.pre = .*nonesuch.* known: .*smollm"):
        load(tmp_path, bpe_keys(pre="nonesuch"))


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", ""])
def test_unknown_models_are_refused_by_name(tmp_path: Path, model: str) -> None:
    with pytest.raises(VocabularyError, match=r"tokenizer\.ggml\.model = .* supported: gpt2, llama"):
        load(tmp_path, bpe_keys(model=model))


def test_token_types_decide_what_is_special(tmp_path: Path) -> None:
    vocabulary = load(tmp_path, bpe_keys())
    assert vocabulary.table.special == {0, 1, 2}
    assert not {0, 1, 2} & set(vocabulary.encode_text("<|im_start|><|im_end|>"))
    assert vocabulary.encode_text("<|im_start|>hello<|im_end|>", parse_special=True) == [
        1,
        _id(vocabulary, b"hello"),
        2,
    ]
    # A user-defined token is ordinary text that happens to have an id of its own.
    assert vocabulary.encode_text("<think>") == [3]
    assert decode(vocabulary.table, [3], skip_special=True) == "<think>"


def test_bos_follows_the_flag_then_the_pre_tokenizer(tmp_path: Path) -> None:
    """Item 89, GGUF side: one BOS where the file wants one, for texts and for chats that do not write it."""
    assert load(tmp_path, bpe_keys(add_bos_token=True)).encode_text("hello")[0] == 1
    assert load(tmp_path, bpe_keys(add_bos_token=None, pre="llama-bpe")).encode_text("hello")[0] == 1
    assert load(tmp_path, bpe_keys(add_bos_token=None, pre="smollm")).encode_text("hello")[0] != 1
    vocabulary = load(tmp_path, bpe_keys(add_bos_token=True))
    with_bos = vocabulary.encode_chat(vocabulary.encoder.spell("<|im_start|>hello"))
    without = vocabulary.encode_chat("hello")
    assert with_bos.count(1) == without.count(1) == 1


def test_ends_of_turns(tmp_path: Path) -> None:
    """Item 88, GGUF side: eos, eot and eom ids all end an answer; without an eot id its usual texts are
    looked for.
    """
    assert load(tmp_path, bpe_keys(eot_token_id=0, eom_token_id=1)).eos_ids == {0, 1, 2}
    assert load(tmp_path, bpe_keys(eos_token_id=0)).eos_ids == {0, 2}


def test_unused_ids_at_the_end_have_no_text(tmp_path: Path) -> None:
    """Item 92: padding of the vocabulary is beyond its size, so that the worker never samples it."""
    keys = bpe_keys()
    size = len(keys["tokens"])
    keys["tokens"] = [*keys["tokens"], "[PAD1]", "[PAD2]"]
    keys["token_type"] = [*keys["token_type"], UNUSED, UNUSED]
    assert load(tmp_path, keys).size == size


def test_two_tokens_with_one_text(tmp_path: Path) -> None:
    keys = bpe_keys()
    keys["tokens"] = [*keys["tokens"], "hello"]
    keys["token_type"] = [*keys["token_type"], NORMAL]
    vocabulary = load(tmp_path, keys)
    assert spelt(vocabulary, "hello") == [b"hello"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_type": [NORMAL]}, r"token_type has 1 entries"),
        ({"merges": None}, r"merges is missing"),
        ({"merges": ["h e", "nope nope"]}, r"merges\[1\]"),
        ({"merges": ["he"]}, r"merges\[0\]"),
        ({"eos_token_id": 10_000}, r"eos_token_id = 10000"),
        ({"tokens": None}, r"tokens is missing"),
    ],
)
def test_lists_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VocabularyError, match=said):
        load(tmp_path, bpe_keys(**changes))


def test_values_of_the_wrong_type_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.pre"):
        load(tmp_path, bpe_keys(pre=7))


def test_templates(tmp_path: Path) -> None:
    other = {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert load(tmp_path, bpe_keys(), other=other).templates == {"default": "A", "tool_use": "B"}


def test_spm_pieces_bytes_and_prefix_space(tmp_path: Path) -> None:
    vocabulary = load(tmp_path, spm_keys())
    assert vocabulary.encode_text("hello world")[0] == 1
    assert spelt(vocabulary, "hello world", add_special=False) == [b" hello", b" world"]
    assert spelt(vocabulary, "ñ", add_special=False) == [b" ", b"\xc3", b"\xb1"]
    assert (
        decode(vocabulary.table, vocabulary.encode_text("hello ñ world"), skip_special=True)
        == "hello ñ world"
    )
    plain = load(tmp_path, spm_keys(add_space_prefix=False))
    assert spelt(plain, "hello world", add_special=False)[-1] == b" world"
    assert b"".join(spelt(plain, "hello world", add_special=False)) == b"hello world"
    assert not vocabulary.table.special ^ {0, 1, 2}


def test_gemma_spells_runs_of_spaces_with_spaces(tmp_path: Path) -> None:
    keys = spm_keys(add_space_prefix=False)
    keys["tokens"] = [*keys["tokens"], "   "]
    keys["scores"] = [*keys["scores"], -1e6]
    keys["token_type"] = [*keys["token_type"], USER_DEFINED]
    vocabulary = load(tmp_path, keys, architecture="gemma3")
    assert decode(vocabulary.table, [len(keys["tokens"]) - 1], skip_special=True) == "   "


def test_spm_equals_sentencepieces_own_rule(tmp_path: Path) -> None:
    """Ground truth: SentencePiece's BPE, joining the neighbours whose joined piece scores best, leftmost
    first.
    """
    keys = spm_keys(add_space_prefix=False, add_bos_token=False)
    vocabulary = load(tmp_path, keys)
    rng = random.Random(5)
    words = [token.replace("▁", " ") for token in keys["tokens"][259:]]
    for _ in range(300):
        text = "".join(rng.choice(words) for _ in range(rng.randint(1, 12))) + rng.choice(["", "ß", "😀"])
        assert vocabulary.encode_text(text) == sentencepiece_bpe(text, keys["tokens"], keys["scores"]), text


def sentencepiece_bpe(text: str, pieces: list[str], scores: list[float]) -> list[int]:
    ids = {piece: index for index, piece in enumerate(pieces) if index >= 259}
    symbols: list[str | None] = list(text.replace(" ", "▁"))
    after = {i: i + 1 for i in range(len(symbols) - 1)}
    before = {i + 1: i for i in range(len(symbols) - 1)}
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int | None, right: int | None) -> None:
        if left is None or right is None:
            return
        joined = f"{symbols[left]}{symbols[right]}"
        if joined in ids:
            heapq.heappush(queue, (-scores[ids[joined]], left, right, joined))

    for left, right in list(after.items()):
        offer(left, right)
    while queue:
        _, left, right, joined = heapq.heappop(queue)
        if symbols[left] is None or symbols[right] is None or f"{symbols[left]}{symbols[right]}" != joined:
            continue
        if after.get(left) != right:
            continue
        symbols[left], symbols[right] = joined, None
        following = after.pop(right, None)
        after.pop(left, None)
        if following is not None:
            after[left], before[following] = following, left
        offer(before.get(left), left)
        offer(left, after.get(left))
    out: list[int] = []
    for symbol in symbols:
        if symbol is not None:
            found = ids.get(symbol)
            out += [found] if found is not None else [3 + byte for byte in symbol.encode()]
    return out


def _id(vocabulary: Vocabulary, raw: bytes) -> int:
    return list(vocabulary.table.raw).index(raw)


def test_control_is_control_whatever_the_alphabet(tmp_path: Path) -> None:
    """Control tokens are stored as they are, not in the byte alphabet."""
    keys = bpe_keys()
    keys["tokens"] = [*keys["tokens"], "<｜end▁of▁turn｜>"]
    keys["token_type"] = [*keys["token_type"], CONTROL]
    vocabulary = load(tmp_path, keys)
    last = len(keys["tokens"]) - 1
    assert vocabulary.encode_text("<｜end▁of▁turn｜>", parse_special=True) == [last]
    assert last not in vocabulary.encode_text("<｜end▁of▁turn｜>")
    assert decode(vocabulary.table, [last], skip_special=False) == "<｜end▁of▁turn｜>"
