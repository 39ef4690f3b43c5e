"""Makes TINY: a two-layer random Llama checkpoint with a byte-level tokenizer, the same weights each time."""

from __future__ import annotations

import json
from pathlib import Path

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(
    directory: Path, *, seed: int = 0, max_position_embeddings: int = 2048, num_layers: int = 2
) -> Path:
    """Write the checkpoint into ``directory`` (safetensors, fp32) and return it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position_embeddings,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=False,
        initializer_range=0.25,  # wide enough that random logits have clear winners
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """A byte-level BPE: three special tokens, 256 bytes, and merges of common English pairs up to 512 ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    corpus = [f"{a} {b} {c}." for a in _WORDS for b in _WORDS for c in _WORDS[:6]]
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "bos_token": "<|endoftext|>",
                "add_bos_token": False,
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )


_WORDS = (
    "the quick brown fox jumps over a lazy dog while many little birds sing about water and light in every "
    "morning when people speak of stone bread music winter summer river mountain number letter question"
).split()
