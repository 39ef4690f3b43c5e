"""Chat messages to a prompt, through the checkpoint's own template."""
