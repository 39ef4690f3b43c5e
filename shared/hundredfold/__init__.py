"""hundredfold: an LLM inference server as gRPC microservices with a plugin architecture."""
