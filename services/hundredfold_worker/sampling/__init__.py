"""From logits to token ids: edits, filters, noise, the draw, and the scores that were asked for."""
