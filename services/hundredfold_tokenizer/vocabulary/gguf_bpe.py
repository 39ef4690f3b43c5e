"""Byte-level BPE out of GGUF metadata (``tokenizer.ggml.model`` = gpt2)."""

from __future__ import annotations

from collections.abc import Sequence

from hundredfold_tokenizer.vocabulary.description import Json, bpe, document
from hundredfold_tokenizer.vocabulary.errors import VocabularyError
from hundredfold_tokenizer.vocabulary.pre_tokenizers import PreTokenizer


def byte_level_tokenizer(
    tokens: Sequence[str], merges: Sequence[str], added: list[Json], pre: PreTokenizer
) -> Json:
    """The tokenizer.json of a byte-level vocabulary.

    Args:
        tokens: Text of each id, in the byte alphabet but for added tokens.
        merges: ``left right`` each, best first.
        added: Entries of added tokens.
        pre: How text is split first.

    Raises:
        VocabularyError: A merge is no pair, or names what is no token.
    """
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs: list[tuple[str, str]] = []
    for index, merge in enumerate(merges):
        # A token may begin with a space only if it is an added one, so the first space parts the pair.
        left, space, right = merge.partition(" ")
        if not (space and left in vocab and right in vocab and left + right in vocab):
            raise VocabularyError(
                f"tokenizer.ggml.merges[{index}] = {merge[:80]!r} does not join two tokens into a third"
            )
        pairs.append((left, right))
    return document(
        bpe(vocab, pairs, ignore_merges=pre.ignore_merges),
        added,
        normalizer=pre.normalizer(),
        pre_tokenizer=pre.pre_tokenizer(),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )
