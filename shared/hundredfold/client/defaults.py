"""Where a server is looked for, and how large its messages may be, unless the caller says otherwise."""

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
