"""Text to ids, such that a special token which a user writes out stays text.

The tokenizer that runs here does not know the special tokens by their texts: each goes by a secret made of
private characters, drawn anew with every start. What a chat template (or a caller who asks for it) writes is
turned into secrets first; what a user writes is not, and can match none. One pass of the library then does
all the rest, with its own rules for spaces beside special tokens.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer

from hundredfold_tokenizer.vocabulary.description import Json
from hundredfold_tokenizer.vocabulary.errors import VocabularyError

_PRIVATE_START, _PRIVATE_END = 0xF0000, 0xFFFFD
_SECRET_CHARS = 6  # 96 bits
_CONTROL_SHAPE = re.compile(r"<\|.*\|>|<start_of_turn>|<end_of_turn>", re.DOTALL)


class Encoder:
    """A tokenizer whose special tokens only this class can write. Thread-safe: nothing changes after it is
    built.

    Args:
        tokenizer: The content of a tokenizer.json.
        ends: Further ids whose texts are special, whatever the file says of them.

    Raises:
        VocabularyError: The library cannot read it, or it makes a special token out of plain text.
    """

    def __init__(self, tokenizer: Json, ends: Iterable[int] = ()) -> None:
        self.controls = control_tokens(tokenizer, frozenset(ends))
        self._secrets = {text: _draw() for text in self.controls}
        longest_first = sorted(self.controls, key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        hidden = _hide(tokenizer, self._secrets)
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(hidden, ensure_ascii=False))
        except Exception as error:  # the library raises bare Exceptions, and panics on some inputs
            raise VocabularyError(f"the tokenizer cannot be built: {str(error)[:300]}") from None
        except BaseException as error:
            raise _unless_panic(
                error, VocabularyError("the tokenizer cannot be built: it is malformed")
            ) from None
        self._verify()

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which nothing counts as special.

        Releases the interpreter lock while it works, so that it can run beside an event loop.

        Raises:
            ValueError: The library cannot encode it.
        """
        try:
            # encode() would hold the lock for as long as it takes; the batch call does not.
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except Exception as error:
            raise ValueError(f"cannot be encoded: {str(error)[:200]}") from None
        except BaseException as error:
            raise _unless_panic(error, ValueError("cannot be encoded")) from None
        return ids

    def spell(self, text: str) -> str:
        """The text with each special token in it as its secret, so that ``encode`` gives its id."""
        return self._written.sub(lambda match: self._secrets[match[0]], text)

    def written(self) -> re.Pattern[str]:
        """Matches the text of any special token, longest first."""
        return self._written

    def affixes(self) -> tuple[list[int], list[int]]:
        """What the file's own post-processor puts before and after a text."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        framed = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(framed) - len(plain) + 1):
            if framed[start : start + len(plain)] == plain:
                return framed[:start], framed[start + len(plain) :]
        raise VocabularyError("post_processor changes the text itself, not only what stands around it")

    def _verify(self) -> None:
        """Both promises, tried on every special token: the secret gives the id, and the text does not."""
        for text, token_id in self.controls.items():
            secret = self._secrets[text]
            if self.encode(secret) != [token_id]:
                raise VocabularyError(f"special token {text[:80]!r} is not encoded as its id {token_id}")
            if token_id in self.encode(text):
                raise VocabularyError(f"special token {text[:80]!r} also comes out of plain text")


def control_tokens(tokenizer: Json, ends: frozenset[int]) -> dict[str, int]:
    """Added tokens that steer the model, by text: special ones, ends, and those of the usual shape."""
    return {
        entry["content"]: entry["id"]
        for entry in tokenizer["added_tokens"]
        if entry["content"]
        and (entry.get("special") or entry["id"] in ends or _CONTROL_SHAPE.fullmatch(entry["content"]))
    }


def _hide(tokenizer: Json, names: Mapping[str, str]) -> Json:
    """A copy in which the special tokens go by other texts."""
    model = dict(tokenizer["model"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): index for text, index in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if isinstance(model.get("merges"), list):
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]
    added = [
        {**entry, "content": names.get(entry["content"], entry["content"])}
        for entry in tokenizer["added_tokens"]
    ]
    return {**tokenizer, "model": model, "added_tokens": added}


def _touches(merge: object, names: Mapping[str, str]) -> bool:
    """Whether a merge makes or uses a special token's text, which the vocabulary then lacks."""
    left, right = merge if isinstance(merge, (list, tuple)) else str(merge).split(" ", 1)
    return left + right in names or left in names or right in names


def _draw() -> str:
    span = _PRIVATE_END - _PRIVATE_START + 1
    return "".join(chr(_PRIVATE_START + secrets.randbelow(span)) for _ in range(_SECRET_CHARS))


def _unless_panic(error: BaseException, replacement: Exception) -> BaseException:
    """The library's panics derive from BaseException; real interrupts do too, and must go on."""
    return replacement if type(error).__name__ == "PanicException" else error
