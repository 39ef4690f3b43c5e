"""``hundredfold bench offline``: the engine's step loop alone, without gRPC and without a scheduler."""

from hundredfold_worker.bench.command import command

__all__ = ["command"]
