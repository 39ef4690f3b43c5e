"""Where files that may be thrown away are kept: the one environment variable that is no service's setting."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``$HUNDREDFOLD_CACHE_DIR``, else ``$XDG_CACHE_HOME/hundredfold``, else ``~/.cache/hundredfold``.

    It may not exist yet. Relative values of the XDG variable are ignored, as its specification asks.
    """
    own = os.environ.get("HUNDREDFOLD_CACHE_DIR")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "hundredfold"
    return Path("~/.cache/hundredfold").expanduser()
