"""Whether an object meets its group's contract: attributes and their types, methods and their arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from hundredfold.plugin import API_VERSION, GROUPS


def faults(group: str, name: str, plugin: object) -> list[str]:
    """What ``plugin``, registered as ``name``, lacks of the contract of ``group``; empty when nothing.

    Raises ``KeyError`` for a group that there is none of.
    """
    contract = GROUPS[group]
    version = getattr(plugin, "api_version", None)
    if isinstance(version, int) and version != API_VERSION:
        # The contract of another version is not ours to check, and a list of differences would mislead.
        return [f"is written for plugin API {version}, this is plugin API {API_VERSION}"]
    found = list(_attribute_faults(contract, plugin))
    given = getattr(plugin, "name", None)
    if isinstance(given, str) and given != name:
        found.append(f"calls itself '{given}' but is registered as '{name}'")
    found.extend(_method_faults(contract, plugin))
    return found


def _attribute_faults(contract: type, plugin: object) -> Iterator[str]:
    for attribute, annotation in contract.__annotations__.items():
        wanted = _resolve(contract, annotation)
        if not hasattr(plugin, attribute):
            yield f"has no attribute '{attribute}' ({wanted.__name__})"
            continue
        value = getattr(plugin, attribute)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is int):
            yield f"attribute '{attribute}' is {type(value).__name__}, wanted is {wanted.__name__}"


def _method_faults(contract: type, plugin: object) -> Iterator[str]:
    for name, wanted in vars(contract).items():
        if name.startswith("_") or not inspect.isfunction(wanted):
            continue
        parameters = [p for p in inspect.signature(wanted).parameters if p != "self"]
        shown = f"{name}({', '.join(parameters)})"
        method = getattr(plugin, name, None)
        if method is None:
            yield f"has no method {shown}"
        elif not callable(method):
            yield f"'{name}' is no method; wanted is {shown}"
        else:
            yield from _signature_faults(method, parameters, shown)


def _signature_faults(method: Any, parameters: list[str], shown: str) -> Iterator[str]:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # written in C: nothing to see
    try:
        signature.bind(*parameters)
        signature.bind(**dict.fromkeys(parameters))
    except TypeError:
        yield f"method {method.__name__}{signature} cannot be called as {shown}"
    if inspect.iscoroutinefunction(method):
        yield f"method {method.__name__} is async; the contract's is not"


def _resolve(contract: type, annotation: Any) -> type:
    if isinstance(annotation, str):
        annotation = eval(annotation, vars(sys.modules[contract.__module__]))
    return annotation if isinstance(annotation, type) else object
