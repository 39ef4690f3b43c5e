"""Names for the content of a block: a chained cryptographic hash over tagged, length-delimited fields."""

from __future__ import annotations

import secrets
from array import array
from hashlib import blake2b

_DIGEST_BYTES = 32
_ROOT = b"hf.cache.root"
_BLOCK = b"hf.cache.block"
"""Personalisation of the hash: what is hashed for one purpose never equals what is hashed for another."""


def new_seed() -> bytes:
    """A secret for one process, so that nobody outside can compute or collide its hashes."""
    return secrets.token_bytes(_DIGEST_BYTES)


class BlockHasher:
    """Hashes of full blocks. A block's hash covers all that its keys and values depend on: the model, the
    adapter, the salt and every token up to its end. The hash is keyed with the process's secret.
    """

    def __init__(self, seed: bytes, model_fingerprint: str, block_size: int) -> None:
        self._seed = seed
        self._fingerprint = model_fingerprint.encode()
        self.block_size = block_size

    def root(self, adapter: str, salt: bytes) -> bytes:
        """The parent of a sequence's first block."""
        state = blake2b(key=self._seed, digest_size=_DIGEST_BYTES, person=_ROOT)
        fields = (b"model", self._fingerprint), (b"adapter", adapter.encode()), (b"salt", salt)
        for tag, value in fields:
            state.update(len(tag).to_bytes(4, "little") + tag + len(value).to_bytes(8, "little") + value)
        state.update(self.block_size.to_bytes(8, "little"))
        return state.digest()

    def block(self, parent: bytes, tokens: array[int]) -> bytes:
        """The hash of a block of ``block_size`` tokens after ``parent``; both have a fixed length."""
        return blake2b(
            parent + tokens.tobytes(), key=self._seed, digest_size=_DIGEST_BYTES, person=_BLOCK
        ).digest()
