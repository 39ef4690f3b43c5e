"""Checkpoints whose layers are of several formats."""
