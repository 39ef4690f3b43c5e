"""AWQ weights as canonical weights."""
