"""The text room: the public door, text to token ids and back."""
