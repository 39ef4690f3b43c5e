"""Unquantized weights and caches."""
