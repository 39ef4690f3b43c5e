"""What ends a quantizing: one kind of error, whose message says what to change."""

from hundredfold.errors import StartError


class QuantizeError(StartError):
    """A model cannot be quantized as asked."""
