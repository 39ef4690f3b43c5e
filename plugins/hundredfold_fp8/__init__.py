"""Weights in 8-bit floats: read from checkpoints, or quantized while a model loads."""
