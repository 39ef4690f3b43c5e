"""Where downloaded models are kept."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "HUNDREDFOLD_CACHE"


def cache_directory(override: Path | None = None) -> Path:
    """Directory of downloaded models: ``override``, HUNDREDFOLD_CACHE, else ~/.cache/hundredfold/models."""
    if override is not None:
        return override.expanduser()
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    return Path(named).expanduser() if named else Path.home() / ".cache" / "hundredfold" / "models"
