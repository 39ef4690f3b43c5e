"""GPTQ weights as canonical weights."""
