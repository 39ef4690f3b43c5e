"""The compute room: weights, paged cache, sampling; no queue, no policy."""
