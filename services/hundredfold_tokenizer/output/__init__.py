"""From token ids to text: detokenizing, stop strings, scores, delivery."""
