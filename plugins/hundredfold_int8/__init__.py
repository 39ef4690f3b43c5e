"""Weights quantized to int8 while the model loads."""
