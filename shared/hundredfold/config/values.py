"""Single values: from the text of a flag or variable to what the field takes, and back to text for people."""

from __future__ import annotations

import enum
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import SecretStr


def parts(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union without ``None`` and ``Annotated``; a plain type is its own only one."""
    if typing.get_origin(annotation) is typing.Annotated:
        return parts(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = (p for arg in typing.get_args(annotation) if arg is not type(None) for p in parts(arg))
        return tuple(found)
    return (annotation,)


def is_optional(annotation: Any) -> bool:
    """Whether ``None`` is allowed."""
    return type(None) in typing.get_args(annotation)


def is_tuple(annotation: Any) -> bool:
    """Whether the field holds several values."""
    return any(p is tuple or typing.get_origin(p) is tuple for p in parts(annotation))


def is_bool(annotation: Any) -> bool:
    """Whether the field is a switch."""
    return bool in parts(annotation)


def lenient(annotation: Any, value: Any) -> Any:
    """Split text at commas for a field of several values, and read ``none`` where it can only mean no value.

    Raises ``ValueError`` for a truth value where a number is wanted, which pydantic would take as 0 or 1.
    """
    kinds = parts(annotation)
    if isinstance(value, str):
        if is_tuple(annotation):
            return tuple(item.strip() for item in value.split(",") if item.strip())
        if value.lower() == "none" and is_optional(annotation) and not {str, SecretStr} & set(kinds):
            return None
    if isinstance(value, bool) and bool not in kinds and ({int, float} & set(kinds)):
        raise ValueError("is a truth value where a number is wanted")
    return value


def describe(value: Any) -> str:
    """A value as a person would type it; secrets stay masked."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return ",".join(describe(item) for item in value)
    return str(value)


def metavar(annotation: Any) -> str:
    """What a flag's help shows in place of the value."""
    names = [_metavar(kind) for kind in parts(annotation)]
    return "|".join(dict.fromkeys(names))


def _metavar(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return "[" + "|".join(describe(v) for v in typing.get_args(kind)) + "]"
    if origin is tuple or kind is tuple:
        inner = typing.get_args(kind)
        return f"{_metavar(inner[0]) if inner else 'TEXT'},..."
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "[" + "|".join(describe(v) for v in kind) + "]"
    known = {int: "INTEGER", float: "NUMBER", bool: "BOOLEAN", Path: "PATH"}
    return known.get(kind, "TEXT")
