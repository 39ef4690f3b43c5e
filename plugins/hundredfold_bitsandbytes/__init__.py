"""bitsandbytes checkpoints as canonical weights, and its quantization while a model loads."""
