"""The side door: OpenAI-compatible HTTP, a pure client of the public gRPC API."""
