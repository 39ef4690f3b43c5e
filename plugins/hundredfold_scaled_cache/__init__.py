"""KV caches of one byte a number, with a scale for each token and kv head."""
