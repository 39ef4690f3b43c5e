"""Torch references: attention and kernels for every canonical weight."""
