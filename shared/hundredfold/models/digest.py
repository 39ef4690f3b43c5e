"""One digest of what a checkpoint says of itself, the same in every service."""

from __future__ import annotations

import hashlib

from hundredfold.models.errors import ModelError
from hundredfold.models.files import ModelFiles
from hundredfold.models.gguf_header import gguf_metadata
from hundredfold.models.safetensors_header import safetensors_header


def fingerprint(files: ModelFiles) -> str:
    """sha256 (hexadecimal) over the weight files' headers, config.json and tokenizer.json.

    Tensors are not read, so it is cheap on any size of model; names of directories do not count.

    Raises:
        CheckpointError: A header is damaged.
        ModelError: A file cannot be read.
    """
    digest = hashlib.sha256(f"hundredfold-model-v1:{files.container}".encode())
    try:
        for weights in files.weights:
            header = gguf_metadata(weights) if files.container == "gguf" else safetensors_header(weights)
            digest.update(header.digest.encode())
        for part in (files.config, files.tokenizer):
            content = part.read_bytes() if part else b""
            digest.update(hashlib.sha256(content).digest())
    except OSError as error:
        raise ModelError(f"model '{files.name}' cannot be read: {error}") from None
    return digest.hexdigest()
