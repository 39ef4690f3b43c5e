"""GGUF weights as canonical weights."""
