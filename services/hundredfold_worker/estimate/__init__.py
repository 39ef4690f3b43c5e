"""``hundredfold estimate``: what a model needs and gives on a machine, from headers alone, without torch."""

from hundredfold_worker.estimate.command import command

__all__ = ["command"]
