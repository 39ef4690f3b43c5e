"""``python -m hundredfold_worker``: the same as ``hundredfold worker``."""

from hundredfold_worker.app import command

if __name__ == "__main__":
    command()
