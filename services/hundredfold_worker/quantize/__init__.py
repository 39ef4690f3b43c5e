"""``hundredfold quantize``: makes a quantized checkpoint, a layer at a time."""

from hundredfold_worker.quantize.command import command

__all__ = ["command"]
