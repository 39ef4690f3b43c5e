"""What commands that talk to a server have in common: the address option, and failures in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from hundredfold.client import DEFAULT_ADDRESS, RequestFailed, RetryPolicy, Unavailable

# A person waits: better to say at once that nobody answers.
RETRY = RetryPolicy(connect_s=1.0)

address_option = click.option(
    "--address", default=DEFAULT_ADDRESS, show_default=True, metavar="HOST:PORT", help="Where the server is."
)


class Refused(click.ClickException):
    """The server refused or failed."""

    exit_code = 1


class NoServer(click.ClickException):
    """No server is there, or it is not ready."""

    exit_code = 3


class Interrupted(click.ClickException):
    """Ctrl-C."""

    exit_code = 130


@contextlib.contextmanager
def failures(address: str) -> Iterator[None]:
    """Turn what a call raises into a line and an exit code."""
    try:
        yield
    except Unavailable as error:
        if "connect" in error.message.lower():
            message = f"no server answers at {address}; start one with `hundredfold serve`, or name another"
            raise NoServer(f"{message} with --address") from None
        raise NoServer(_line(error)) from None
    except RequestFailed as error:
        raise Refused(_line(error)) from None
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None


def _line(error: RequestFailed) -> str:
    name = error.code.name.lower().replace("_", " ")
    field = f" ({error.field})" if error.field and error.field not in error.message else ""
    hint = f"; try again in {error.retry_after_s:g} s" if error.retry_after_s else ""
    return f"{name}: {' '.join(error.message.split())}{field}{hint}"
