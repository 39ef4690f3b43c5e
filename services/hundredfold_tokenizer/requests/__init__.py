"""Requests in progress: their state, their names, and the stream to the scheduler that carries them."""
