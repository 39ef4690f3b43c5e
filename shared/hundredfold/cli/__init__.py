"""The command line: one module per group of commands, each imported only when called."""
