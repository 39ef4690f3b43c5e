"""Types of request fields, and the checks that all request models share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hundredfold_gateway.errors import ApiError

M = TypeVar("M", bound="RequestModel")

_MAX_SHOWN = 100

UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""What the contract's counts hold."""

Number = Annotated[float, Field(allow_inf_nan=False)]
"""A fraction; its bounds are the door's to know."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Strings = Annotated[list[str], BeforeValidator(_listed)]
"""One string or a list of them."""


class RequestModel(BaseModel):
    """A body or a part of one: types are as JSON has them, nothing is converted, nothing unknown passes."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )


def parse(model: type[M], body: Mapping[str, Any]) -> M:
    """The typed request; null means that a field is not there.

    Raises:
        ApiError: 400 with the first parameter at fault.
    """
    try:
        return model.model_validate({name: value for name, value in body.items() if value is not None})
    except ValidationError as error:
        raise _refusal(model, error) from None


def _refusal(model: type[RequestModel], error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    param = path(first["loc"])
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        near = difflib.get_close_matches(param, model.model_fields, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return ApiError(
            400, f"Unknown parameter: '{param[:_MAX_SHOWN]}'{hint}", param=param, code="unknown_parameter"
        )
    if first["type"] == "missing":
        return ApiError(
            400, f"Missing required parameter: '{param}'", param=param, code="missing_required_parameter"
        )
    reason = first["msg"].removeprefix("Value error, ")
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return ApiError(400, f"{param} = {shown(first['input'])}: {reason}", param=param, code=code)


def shown(value: Any) -> str:
    """A value for a message, short; large ones are only described."""
    if isinstance(value, list | dict):
        return f"{'an array' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def path(parts: Iterable[int | str]) -> str:
    """Such as ``messages[2].content``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def unsupported(param: str, what: str) -> ApiError:
    """A feature that is not there."""
    return ApiError(400, f"{what} is not supported", param=param, code="unsupported_parameter")


_PLACES = {
    "text": "prompt",
    "token_ids": "prompt",
    "chat": "messages",
    "include_stop": "include_stop_str_in_output",
    "prompt_logprobs": "logprobs",
}
_PREFIXES = (
    ("sampling.", ""),
    ("token_ids.ids", "prompt"),
    ("chat.messages", "messages"),
    ("chat.tools_json", "tools"),
    ("chat.template_arguments_json", "chat_template_kwargs"),
    ("chat.", ""),
)


def param_of(field: str | None, also: Mapping[str, str]) -> str | None:
    """The parameter of ours that a field of the contract is.

    Args:
        field: As the door names it, such as ``sampling.stop[1]``.
        also: Names that differ in this request, such as max_tokens.
    """
    if field is None:
        return None
    name = field
    for prefix, instead in _PREFIXES:
        if name.startswith(prefix):
            name = instead + name.removeprefix(prefix)
            break
    name = name.replace("tool_calls_json", "tool_calls")
    name, bracket, rest = name.partition("[")
    return (also.get(name) or _PLACES.get(name, name)) + bracket + rest
