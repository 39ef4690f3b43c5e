"""OpenAI's requests and answers: what they look like, and what they are in the public gRPC API."""
