"""The served model's vocabulary: encode, decode tables, special tokens, chat templates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hundredfold.models import GgufMetadata, ModelFiles, gguf_metadata
from hundredfold_tokenizer.vocabulary.description import TokenizerDescription
from hundredfold_tokenizer.vocabulary.encoder import Encoder
from hundredfold_tokenizer.vocabulary.gguf import read_gguf
from hundredfold_tokenizer.vocabulary.token_table import TokenTable, token_table
from hundredfold_tokenizer.vocabulary.tokenizer_json import read_tokenizer_json

_CONTINUED = "\n"


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Everything the door knows about tokens. Immutable, shared by all threads.

    Attributes:
        encoder: Text to ids.
        table: Ids to bytes and text.
        prefix: Ids put before a text, such as BOS.
        suffix: Ids put after a text.
        bos_id: Beginning of sequence, if there is one.
        eos_ids: Ends that the tokenizer itself names.
        chat_adds_bos: Whether a chat that does not begin with BOS gets one.
        names: Texts of named special tokens, for chat templates.
        templates: Chat templates by name.
    """

    encoder: Encoder
    table: TokenTable
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    bos_id: int | None
    eos_ids: frozenset[int]
    chat_adds_bos: bool
    names: Mapping[str, str]
    templates: Mapping[str, str]

    @property
    def size(self) -> int:
        """Ids from here on have no text."""
        return self.table.size

    def encode_text(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of a text prompt.

        Args:
            text: The text.
            add_special: Whether the tokenizer's own BOS and the like are added; one that the text already
                begins with (through ``parse_special``) is not doubled.
            parse_special: Whether special tokens written in the text count.

        Raises:
            ValueError: The text cannot be encoded.
        """
        ids = self.encoder.encode(self.encoder.spell(text) if parse_special else text)
        return self._framed(ids) if add_special else ids

    def encode_chat(self, spelt: str) -> list[int]:
        """Ids of a rendered chat in which the template's special tokens stand as the encoder spells them.

        Raises:
            ValueError: The text cannot be encoded.
        """
        ids = self.encoder.encode(spelt)
        if self.chat_adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def encode_inside(self, text: str) -> list[int]:
        """Ids of a text as it is inside of another, without the space that is read before a whole text.

        Raises:
            ValueError: The text cannot be encoded.
        """
        lead = self.encoder.encode(_CONTINUED)
        ids = self.encoder.encode(_CONTINUED + text)
        return ids[len(lead) :] if ids[: len(lead)] == lead else self.encoder.encode(text)

    def _framed(self, ids: list[int]) -> list[int]:
        begins = bool(self.prefix) and tuple(ids[: len(self.prefix)]) == self.prefix
        ends = bool(self.suffix) and tuple(ids[-len(self.suffix) :]) == self.suffix
        return [*(() if begins else self.prefix), *ids, *(() if ends else self.suffix)]


def load_vocabulary(files: ModelFiles, metadata: GgufMetadata | None = None) -> Vocabulary:
    """Read a checkpoint's tokenizer. ``metadata`` is the GGUF header, if it has been read already.

    Raises:
        VocabularyError: It cannot be used; the message says which part, its value and what is known.
        CheckpointError: The GGUF file is damaged.
    """
    # The library would start a thread per core; we bring the threads, and only as many as the door may use.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if files.container == "gguf" and files.tokenizer is None:
        description = read_gguf(metadata if metadata is not None else gguf_metadata(files.path))
    else:
        description = read_tokenizer_json(files)
    return build_vocabulary(description)


def build_vocabulary(description: TokenizerDescription) -> Vocabulary:
    """The vocabulary of a description.

    Raises:
        VocabularyError: The tokenizer cannot be used.
    """
    encoder = Encoder(description.tokenizer, description.eos_ids)
    prefix, suffix = _affixes(description, encoder)
    return Vocabulary(
        encoder=encoder,
        table=token_table(description.tokenizer, description.size),
        prefix=tuple(prefix),
        suffix=tuple(suffix),
        bos_id=description.bos_id,
        eos_ids=description.eos_ids,
        chat_adds_bos=description.chat_adds_bos,
        names=description.names,
        templates=description.templates,
    )


def _affixes(description: TokenizerDescription, encoder: Encoder) -> tuple[Sequence[int], Sequence[int]]:
    """A config that says whether BOS or EOS is added overrules the post-processor altogether."""
    if description.add_bos is None and description.add_eos is None:
        return encoder.affixes()
    bos = [description.bos_id] if description.add_bos and description.bos_id is not None else []
    end = min(description.eos_ids, default=None)
    return bos, [end] if description.add_eos and end is not None else []
