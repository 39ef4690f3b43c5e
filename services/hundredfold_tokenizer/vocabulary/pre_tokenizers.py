"""How GGUF files name the way a byte-level vocabulary splits text, and what each name means.

The names are those of ``tokenizer.ggml.pre``; the expressions are those of the tokenizers that the files were
made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from hundredfold_tokenizer.vocabulary.description import Json
from hundredfold_tokenizer.vocabulary.errors import VocabularyError

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_WITH_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    + _TAIL_WITH_SLASH
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}" + _TAIL_WITH_SLASH
)
_DIGIT = r"\p{N}"
_UP_TO_THREE_DIGITS = r"\p{N}{1,3}"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splits, applied one after the other, and what else the name decides.

    Attributes:
        splits: Regular expressions; each match is a piece, and so is what lies between matches.
        add_bos: Whether BOS precedes a text when the file does not say.
        ignore_merges: Whether a piece that is a token is that token, whatever the merges say.
        compose: Whether text is first brought into Unicode's composed form (NFC).
    """

    splits: tuple[str, ...]
    add_bos: bool = False
    ignore_merges: bool = False
    compose: bool = False

    def normalizer(self) -> Json | None:
        """As tokenizer.json writes it."""
        return {"type": "NFC"} if self.compose else None

    def pre_tokenizer(self) -> Json:
        """As tokenizer.json writes it."""
        splits: list[Json] = [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in self.splits
        ]
        to_bytes = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        return {"type": "Sequence", "pretokenizers": [*splits, to_bytes]}


_PLAIN = PreTokenizer((_GPT2,))
_DIGITS_APART = PreTokenizer((_DIGIT, _GPT2))
_LLAMA = PreTokenizer((_LLAMA3,), add_bos=True, ignore_merges=True)
_LLAMA_MERGED = PreTokenizer((_LLAMA3,))
_QWEN = PreTokenizer((_QWEN2,), compose=True)
_OMNI = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "jais": _PLAIN,
    "exaone4": _PLAIN,
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "command-r": _DIGITS_APART,
    "codeshell": _DIGITS_APART,
    "exaone": _DIGITS_APART,
    "minerva-7b": _DIGITS_APART,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "llama-bpe": _LLAMA,
    "falcon3": _LLAMA,
    "falcon-h1": _LLAMA,
    "pixtral": _LLAMA,
    "midm-2.0": _LLAMA,
    "lfm2": _LLAMA,
    "dbrx": _LLAMA_MERGED,
    "smaug-bpe": _LLAMA_MERGED,
    "chatglm-bpe": _LLAMA_MERGED,
    "glm4": _LLAMA_MERGED,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "megrez": _QWEN,
    "stablelm2": PreTokenizer((_QWEN2,)),
    "hunyuan": PreTokenizer((_QWEN2,)),
    "tekken": PreTokenizer((_TEKKEN,), add_bos=True, ignore_merges=True),
    "gpt-4o": _OMNI,
    "llama4": _OMNI,
    "minimax-m2": _OMNI,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-v3": PreTokenizer((_UP_TO_THREE_DIGITS, "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)),
}
"""What each name of ``tokenizer.ggml.pre`` means."""


def pre_tokenizer_named(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of that name; files without a name were made for ``default``.

    Raises:
        VocabularyError: The name is unknown, so that text would be split in some other way than the model
        learnt.
    """
    found = PRE_TOKENIZERS.get(name if name is not None else "default")
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise VocabularyError(
            f"tokenizer.ggml.pre = {name[:100] if name else name!r} is unknown; known: {known}"
        )
    return found
