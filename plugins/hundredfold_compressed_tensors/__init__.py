"""Checkpoints that llm-compressor writes, as canonical weights."""
