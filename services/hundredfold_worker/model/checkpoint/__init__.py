"""Checkpoints on disk: files opened, checked and mapped; tensors by name; nothing is computed here."""

from hundredfold_worker.model.checkpoint.config_json import ConfigJson
from hundredfold_worker.model.checkpoint.opened import Checkpoint, open_checkpoint
from hundredfold_worker.model.checkpoint.tensors import MappedTensors

__all__ = ["Checkpoint", "ConfigJson", "MappedTensors", "open_checkpoint"]
