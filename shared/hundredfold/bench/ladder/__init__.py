"""``hundredfold bench ladder``: from the naive way to everything at once, stage after stage, measured."""
