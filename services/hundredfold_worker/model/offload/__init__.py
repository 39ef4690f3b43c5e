"""Weights beyond a budget: in a file, read ahead of use, dropped after it. See ``stream`` and ``spill``."""

from hundredfold_worker.model.offload.layers import Budgeted, Held, StreamedLayers, load_layers
from hundredfold_worker.model.offload.stream import Stream

__all__ = ["Budgeted", "Held", "Stream", "StreamedLayers", "load_layers"]
