"""``python -m hundredfold_gateway``."""

from hundredfold_gateway.app import command

if __name__ == "__main__":
    command()
