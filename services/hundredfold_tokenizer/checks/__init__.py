"""Checks of a checkpoint's text side: special tokens and chat template. Found by the tool ``check-text``."""

from hundredfold_tokenizer.checks.check import check

__all__ = ["check"]
