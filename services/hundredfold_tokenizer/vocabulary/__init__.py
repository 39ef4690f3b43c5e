"""The served model's vocabulary, from tokenizer.json or GGUF metadata."""

from hundredfold_tokenizer.vocabulary.errors import VocabularyError
from hundredfold_tokenizer.vocabulary.token_table import TokenTable
from hundredfold_tokenizer.vocabulary.vocabulary import Vocabulary, build_vocabulary, load_vocabulary

__all__ = ["TokenTable", "Vocabulary", "VocabularyError", "build_vocabulary", "load_vocabulary"]
