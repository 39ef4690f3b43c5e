"""Models on disk: names, files, headers and fingerprints. No torch, and no network but in ``pull``."""

from hundredfold.models.cache import cache_directory
from hundredfold.models.catalog import CATALOG, DEFAULT_MODEL, CatalogModel
from hundredfold.models.digest import fingerprint
from hundredfold.models.download import hub_models, pull
from hundredfold.models.errors import CheckpointError, ModelError, ModelNotFound
from hundredfold.models.files import ModelFiles
from hundredfold.models.gguf_header import GgufMetadata, GgufTensor, gguf_metadata
from hundredfold.models.lookup import resolve
from hundredfold.models.safetensors_header import (
    SafetensorsHeader,
    SafetensorsTensor,
    safetensors_header,
    shard_files,
)

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogModel",
    "CheckpointError",
    "GgufMetadata",
    "GgufTensor",
    "ModelError",
    "ModelFiles",
    "ModelNotFound",
    "SafetensorsHeader",
    "SafetensorsTensor",
    "cache_directory",
    "fingerprint",
    "gguf_metadata",
    "hub_models",
    "pull",
    "resolve",
    "safetensors_header",
    "shard_files",
]
