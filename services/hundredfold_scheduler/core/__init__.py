"""All decisions of the planning room, as plain Python: no gRPC, no protobuf, no clock of its own."""
