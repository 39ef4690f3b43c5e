"""``hundredfold diagnose``: why a model's output went wrong, each finding with its cause and remedy."""

from hundredfold_worker.diagnose.command import command

__all__ = ["command"]
