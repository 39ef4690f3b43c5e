"""``python -m hundredfold_tokenizer``."""

from hundredfold_tokenizer.app import command

if __name__ == "__main__":
    command()
