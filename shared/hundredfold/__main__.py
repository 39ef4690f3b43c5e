"""``python -m hundredfold``: the command line, for an interpreter whose scripts are not on the path."""

from hundredfold.cli.main import run

if __name__ == "__main__":
    run()
