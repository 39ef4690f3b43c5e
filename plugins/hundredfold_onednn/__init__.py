"""Linear layers through oneDNN on CPU."""
