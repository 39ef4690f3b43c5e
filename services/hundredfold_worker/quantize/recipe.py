"""What is done to a linear layer, and which layer gets what: methods, their options, rules by name."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hundredfold_worker.quantize.errors import QuantizeError

WHOLE_ROW = -1
"""The group size of one scale for a whole row."""

DENSE = "none"
"""What a rule says for layers that stay as they are."""


@enum.unique
class Method(enum.Enum):
    """How a matrix is rounded."""

    GPTQ = "gptq"
    AWQ = "awq"
    SMOOTHQUANT = "smoothquant"
    INT8 = "int8"
    FP8 = "fp8"

    @property
    def grouped(self) -> bool:
        """Whether groups of columns share a scale; otherwise a row does."""
        return self in BITS


BITS: Mapping[Method, tuple[int, ...]] = {Method.GPTQ: (2, 3, 4, 8), Method.AWQ: (2, 3, 4, 8)}
"""Widths that a grouped method writes. The others write 8 bits."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One method with its options, checked. Methods without groups have the fields' usual values."""

    method: Method
    bits: int = 8
    group_size: int = WHOLE_ROW
    symmetric: bool = True
    act_order: bool = False

    def __str__(self) -> str:
        if not self.method.grouped:
            return self.method.value
        said = f"{self.method.value}:{self.bits}:{self.group_size}"
        said += (
            "" if self.symmetric is (self.method is Method.GPTQ) else (":sym" if self.symmetric else ":asym")
        )
        return said + (":act-order" if self.act_order else "")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside a method; ``None`` for the method's own."""

    bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    act_order: bool = False


def make_recipe(name: str, options: Options) -> Recipe:
    """A method with options. Raises ``QuantizeError`` naming the option that does not go with it."""
    try:
        method = Method(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Method)
        raise QuantizeError(f"method '{name[:80]}' is unknown; known are {known}, {DENSE}") from None
    if not method.grouped:
        return _whole(method, options)
    bits = 4 if options.bits is None else options.bits
    if bits not in BITS[method]:
        raise QuantizeError(f"{name} has {_or(BITS[method])} bits, not {bits}")
    group_size = 64 if options.group_size is None else options.group_size
    if group_size != WHOLE_ROW and (group_size < 16 or group_size % 8):
        raise QuantizeError(
            f"group size {group_size} is not possible: a multiple of 8 from 16 up, or -1 for a whole row"
        )
    if options.act_order and method is not Method.GPTQ:
        raise QuantizeError(f"act-order is an option of gptq, not of {name}")
    symmetric = method is Method.GPTQ if options.symmetric is None else options.symmetric
    return Recipe(method, bits, group_size, symmetric, options.act_order)


def _whole(method: Method, options: Options) -> Recipe:
    name = method.value
    if options.bits not in (None, 8):
        raise QuantizeError(f"{name} has 8 bits, not {options.bits}")
    if options.group_size not in (None, WHOLE_ROW):
        raise QuantizeError(f"{name} has a scale for each row, no groups of {options.group_size}")
    if options.symmetric is False:
        raise QuantizeError(f"{name} has no zero points: it is symmetric")
    if options.act_order:
        raise QuantizeError(f"act-order is an option of gptq, not of {name}")
    return Recipe(method)


@dataclass(frozen=True, slots=True)
class Rule:
    """Layers whose names match a pattern, and what they get; ``None`` leaves them as they are."""

    pattern: str
    recipe: Recipe | None


def parse_rule(text: str, options: Options) -> Rule:
    """``PATTERN=method[:bits[:group]]`` or ``PATTERN=none``. Raises ``QuantizeError``."""
    pattern, equals, said = text.rpartition("=")
    if not equals or not pattern or not said:
        raise QuantizeError(
            f"rule '{text[:200]}' is not of the form PATTERN=method:bits:group or PATTERN={DENSE}"
        )
    name, *numbers = said.split(":")
    if name == DENSE and not numbers:
        return Rule(pattern, None)
    if len(numbers) > 2:
        raise QuantizeError(f"rule '{text[:200]}' says more than method:bits:group")
    try:
        stated = [int(number) for number in numbers]
    except ValueError:
        raise QuantizeError(f"rule '{text[:200]}': bits and group are whole numbers") from None
    own = Method(name) if name in {kind.value for kind in Method} else None
    grouped = own is not None and own.grouped
    try:
        recipe = make_recipe(
            name,
            Options(
                bits=stated[0] if stated else (options.bits if grouped else None),
                group_size=stated[1] if len(stated) > 1 else (options.group_size if grouped else None),
                symmetric=options.symmetric if grouped else None,
                act_order=options.act_order and own is Method.GPTQ,
            ),
        )
    except QuantizeError as error:
        raise QuantizeError(f"rule '{text[:200]}': {error}") from None
    return Rule(pattern, recipe)


@dataclass(frozen=True, slots=True)
class Ends:
    """The matrices outside of the layers."""

    embedding: str = "model.embed_tokens"
    head: str = "lm_head"
    tied: bool = False
    """Whether the output layer is the embedding, as the model is read."""


def assign(
    names: Iterable[str], ends: Ends, rules: Sequence[Rule], otherwise: Recipe | None
) -> dict[str, Recipe | None]:
    """Each layer's recipe: of the first rule that matches, else ``otherwise``.

    The output layer and the embedding are there only when a rule that is their very name quantizes them: they
    lose the most, and few readers take them. Raises ``QuantizeError`` for a rule that matches no layer, and
    when nothing is quantized.
    """
    assigned: dict[str, Recipe | None] = {}
    met: set[int] = set()
    last = ""
    for name in (ends.embedding, ends.head):
        own = [number for number, rule in enumerate(rules) if rule.pattern == name]
        met.update(own)
        if own and (recipe := rules[own[0]].recipe) is not None:
            assigned[name] = recipe
    for name in names:
        matching = [number for number, rule in enumerate(rules) if fnmatchcase(name, rule.pattern)]
        met.update(matching)
        assigned[name] = rules[matching[0]].recipe if matching else otherwise
        last = name
    for number, rule in enumerate(rules):
        if number not in met:
            raise QuantizeError(
                f"rule '{rule.pattern}' matches no linear layer; they are called like '{last}'. Output layer "
                f"and embedding are matched by their names alone, '{ends.head}' and '{ends.embedding}'"
            )
    if not any(assigned.values()):
        raise QuantizeError("nothing would be quantized: name a --method, or a --rule with one")
    return assigned


def _or(numbers: Sequence[int]) -> str:
    return " or ".join((", ".join(map(str, numbers[:-1])), str(numbers[-1])))
