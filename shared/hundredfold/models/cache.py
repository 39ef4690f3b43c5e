"""Where downloaded models are kept."""

from __future__ import annotations

from pathlib import Path

from hundredfold.config import cache_dir


def cache_directory(override: Path | None = None) -> Path:
    """Directory of downloaded models: ``override``, else ``models`` in the cache of hundredfold.config."""
    return override.expanduser() if override is not None else cache_dir() / "models"
