"""Weights beyond a budget: in a file, read ahead of use into shared buffers. See ``stream`` and ``ring``."""

from hundredfold_worker.model.offload.layers import Budgeted, Held, StreamedLayers, load_layers
from hundredfold_worker.model.offload.program import Part, StreamedProgram
from hundredfold_worker.model.offload.stream import Stream

__all__ = ["Budgeted", "Held", "Part", "Stream", "StreamedLayers", "StreamedProgram", "load_layers"]
