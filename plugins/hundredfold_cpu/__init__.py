"""Kernels of our own for CPUs, in C++, chosen by what the processor can."""
