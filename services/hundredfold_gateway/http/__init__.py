"""HTTP itself: bodies in, events out, who is still there."""
