"""The bitsandbytes library, imported when something is quantized with it and not before."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hundredfold.plugin import Reasons

INSTALL = "pip install 'hundredfold[bitsandbytes]'"


def missing() -> Reasons:
    """Why the library cannot be used; empty when it seems to be there. Nothing is imported."""
    if find_spec("bitsandbytes") is None:
        return [f"needs the bitsandbytes library: {INSTALL}"]
    return []


def functional() -> Any:
    """``bitsandbytes.functional``. Raises ``ValueError`` with what to do when it cannot be imported."""
    try:
        return import_module("bitsandbytes.functional")
    except Exception as error:  # it looks for drivers while it is imported
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"the bitsandbytes library cannot be used ({said}); {INSTALL}") from error
