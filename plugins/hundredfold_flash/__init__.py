"""Attention through the flash-attn library on CUDA."""
