"""The step loop: slots, plans, batches and results. Knows nothing of gRPC."""
