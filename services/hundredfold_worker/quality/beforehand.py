"""What stands against a comparison of drawn tokens and can be known before a model is loaded."""

from __future__ import annotations

import torch

from hundredfold.errors import StartError
from hundredfold.models import ModelError, resolve
from hundredfold_worker.memory import free_bytes, total_bytes
from hundredfold_worker.model import ModelLoadError
from hundredfold_worker.model.architectures import describe
from hundredfold_worker.model.checkpoint import open_checkpoint
from hundredfold_worker.sizes import show

_SHARE = 0.5
"""Of the memory that is free, the most that kept logits may take: a model and its cache need some, too."""


def vocabulary(model: str) -> int:
    """How many logits a model gives, by its checkpoint's header. Raises ``StartError``."""
    try:
        return describe(open_checkpoint(resolve(model))).description.vocab_size
    except (ModelError, ModelLoadError) as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"model '{model}' cannot be read: {error}") from error


def room_for_logits(decode: int, batch: int, vocab_size: int) -> None:
    """Raises ``StartError`` where float32 logits of so many tokens do not fit in memory beside a model."""
    wanted = decode * batch * vocab_size * torch.float32.itemsize
    cpu = torch.device("cpu")
    limit = int(_SHARE * min(free_bytes(cpu), total_bytes(cpu)))
    if wanted > limit:
        raise StartError(
            f"--decode {decode} times --batch {batch} keeps {wanted} bytes ({show(wanted)}) of A's logits "
            f"until B runs, {vocab_size} for each token; the limit is {limit} ({show(limit)}), half of the "
            "memory that is free. Lower --decode or --batch"
        )
