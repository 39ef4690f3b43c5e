"""Speculation by prompt lookup: what followed the same words before is likely to follow them again."""
