"""Small vocabularies, made once."""

from __future__ import annotations

from support.text_fixtures import bpe, bpe_directory, spm, spm_directory

__all__ = ["bpe", "bpe_directory", "spm", "spm_directory"]
