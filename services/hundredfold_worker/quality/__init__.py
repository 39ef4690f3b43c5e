"""``hundredfold quality``: what one way of serving a model loses against another."""

from hundredfold_worker.quality.command import command

__all__ = ["command"]
