"""The process that renders chat templates: reads requests from its standard input, answers on its standard
output.

Templates come with checkpoints, so they are strangers' programs. A sandbox stops what they can reach, not how
long they run or how much they build; only a process of its own can be ended. It imports nothing of ours but
this file.

Each message is four bytes of length, most significant first, and so much JSON. The first request carries the
templates, each later one what to render; each reply holds ``text``, or ``error`` and ``message``.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from typing import IO, Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

RAISED, FAILED, BROKEN, LIMIT = "raised", "failed", "broken", "limit"
"""Kinds of error: the template refused the chat, it stumbled over it, it cannot be used, it took too much."""

MAX_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_CPU_S = 4
"""Processor time for one request, should nobody be there any more to end the process."""

_MAX_MESSAGE_CHARS = 300


class RaisedByTemplate(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class GenerationTag(jinja2.ext.Extension):
    """Lets templates mark the assistant's words with ``{% generation %}``, which changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 - the base class's attribute

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        """Replace the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PlainNamespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        """Set one attribute."""
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name[:50]!r}")
        super().__setitem__(name, value)


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The sandbox, with the functions and filters that templates of checkpoints are written against."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    made.globals["namespace"] = PlainNamespace
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class Renderer:
    """The compiled templates of one checkpoint."""

    def __init__(self, templates: dict[str, str]) -> None:
        self._sources = templates
        self._compiled: dict[str, jinja2.Template] = {}

    def render(self, name: str, variables: dict[str, Any], max_chars: int) -> dict[str, str]:
        """The reply to one request."""
        try:
            template = self._compiled.get(name)
            if template is None:
                template = self._compiled[name] = environment().from_string(self._sources[name])
        except jinja2.TemplateSyntaxError as error:
            return _error(BROKEN, f"line {error.lineno}: {error.message}")
        except Exception as error:
            return _error(BROKEN, repr(error))
        parts: list[str] = []
        chars = 0
        try:
            for part in template.generate(**variables):
                chars += len(part)
                if chars > max_chars:
                    return _error(LIMIT, f"its text is longer than {max_chars} characters")
                parts.append(part)
        except RaisedByTemplate as error:
            return _error(RAISED, error.message or "")
        except (jinja2.exceptions.SecurityError, OverflowError) as error:
            return _error(BROKEN, str(error))
        except MemoryError:
            parts.clear()
            return _error(LIMIT, f"it needs more than {MAX_MEMORY_BYTES} bytes")
        except Exception as error:  # whatever a stranger's program can run into
            return _error(FAILED, f"{type(error).__name__}: {error}")
        return {"text": "".join(parts)}


def _error(kind: str, message: str) -> dict[str, str]:
    return {"error": kind, "message": message[:_MAX_MESSAGE_CHARS]}


def _confine() -> None:
    for which, limit in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _allow_cpu() -> None:
    """Move the limit of processor time ahead of what has been used, for one more request."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + MAX_CPU_S + 1, hard))


def serve(source: IO[bytes], sink: IO[bytes], confine: Callable[[], None] = _confine) -> None:
    """Answer requests until the other end closes."""
    confine()
    renderer: Renderer | None = None
    while len(head := source.read(4)) == 4:
        request = json.loads(source.read(int.from_bytes(head, "big")))
        _allow_cpu()
        if renderer is None:
            renderer = Renderer(request["templates"])
            reply = {"text": ""}
        else:
            reply = renderer.render(request["template"], request["variables"], request["max_chars"])
        try:
            body = json.dumps(reply, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            body = json.dumps(_error(FAILED, "its text holds half a surrogate pair")).encode()
        sink.write(len(body).to_bytes(4, "big") + body)
        sink.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
