"""Generated stubs; made by `make proto`."""
