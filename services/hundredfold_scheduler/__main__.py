"""``python -m hundredfold_scheduler``: the same as ``hundredfold scheduler``."""

from hundredfold_scheduler.app import command

if __name__ == "__main__":
    command()
