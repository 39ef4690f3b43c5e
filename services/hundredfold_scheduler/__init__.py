"""The planning room: queue, blocks and batches; no text, no tensors."""
