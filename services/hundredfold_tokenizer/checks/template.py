"""Checks of the chat template, by rendering with it: what begins a prompt, what opens and ends a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from hundredfold.findings import Finding, Severity, fine
from hundredfold.rpc import RequestError
from hundredfold_tokenizer.chat.process import RenderProcess
from hundredfold_tokenizer.chat.template import ChatTemplate
from hundredfold_tokenizer.checks.stated import Stated
from hundredfold_tokenizer.validation.chat import Chat
from hundredfold_tokenizer.vocabulary import Vocabulary

_TIMEOUT_S = 20.0
_MAX_CHARS = 1 << 20
_QUESTION, _ANSWER = "Name a river.", "The Rhine."


@dataclass(frozen=True, slots=True)
class _Rendered:
    """The same chat three times, as ids before the door would put BOS in front."""

    opened: list[int]
    """A question, and the assistant's turn opened."""
    unopened: list[int]
    answered: list[int]
    """Question and answer."""


def check_template(vocabulary: Vocabulary, stated: Stated, model: str) -> Iterator[Finding]:
    """The default template."""
    if "default" not in vocabulary.templates:
        yield Finding(
            "template-missing",
            Severity.WARNING,
            "there is no chat template: chats are refused, only texts are answered",
            "a base model, or chat_template.jinja and tokenizer_config.json were not copied along",
            "copy the chat template of the model's chat variant beside the weights",
        )
        return
    try:
        rendered = asyncio.run(_render(vocabulary, model))
    except RequestError as error:
        yield Finding(
            "template-broken",
            Severity.ERROR,
            error.message,
            "the template is damaged, or uses what its sandbox does not have",
            "take the template of the original model",
        )
        return
    yield from _beginning(vocabulary, rendered)
    yield from _opening(rendered)
    yield from _ending(vocabulary, stated, rendered)


async def _render(vocabulary: Vocabulary, model: str) -> _Rendered:
    process = RenderProcess(vocabulary.templates, timeout_s=_TIMEOUT_S, max_chars=_MAX_CHARS)
    template = ChatTemplate(vocabulary, process, model)
    question, answer = {"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}
    try:
        opened = await template.render(_chat([question], opens=True))
        unopened = await template.render(_chat([question], opens=False))
        answered = await template.render(_chat([question, answer], opens=False))
    finally:
        await process.close()
    encode = vocabulary.encoder.encode
    return _Rendered(encode(opened.spelt), encode(unopened.spelt), encode(answered.spelt))


def _chat(messages: list[dict[str, str]], *, opens: bool) -> Chat:
    return Chat([dict(message) for message in messages], None, {}, opens, False, 0)


def _beginning(vocabulary: Vocabulary, rendered: _Rendered) -> Iterator[Finding]:
    """BOS: none, one or two."""
    bos = vocabulary.bos_id
    leading = 0
    while bos is not None and leading < len(rendered.opened) and rendered.opened[leading] == bos:
        leading += 1
    adds = bos is not None and bos in vocabulary.prefix
    if leading > 1:
        yield Finding(
            "double-bos",
            Severity.ERROR,
            f"the chat template writes the beginning-of-sequence token {bos} {leading} times",
            "bos_token is written by the template and once more by what was put before it",
            "remove one {{ bos_token }} from the chat template",
        )
    elif leading == 1 and adds:
        yield Finding(
            "double-bos",
            Severity.WARNING,
            f"the chat template writes the beginning-of-sequence token {bos}, and the tokenizer adds one too",
            "add_bos_token (or a post-processor) and a template with {{ bos_token }}",
            "this server sends one; elsewhere set add_special_tokens false for rendered chats",
        )
    elif leading == 0 and adds and not vocabulary.chat_adds_bos:
        yield Finding(
            "chat-without-bos",
            Severity.WARNING,
            f"texts begin with the token {bos}, chats do not",
            "the chat template has no {{ bos_token }}, though the tokenizer puts it before texts",
            "compare with the original model's template; many models need the token to make sense",
        )
    else:
        yield fine("bos", "a chat begins as a text does")


def _opening(rendered: _Rendered) -> Iterator[Finding]:
    if rendered.opened == rendered.unopened:
        yield Finding(
            "no-generation-prompt",
            Severity.WARNING,
            "the chat template ignores add_generation_prompt: the assistant's turn is never opened",
            "an old or shortened template",
            "add {% if add_generation_prompt %}… to the chat template; else answers go on with the question",
        )


def _ending(vocabulary: Vocabulary, stated: Stated, rendered: _Rendered) -> Iterator[Finding]:
    """What the template writes after an answer has to be an end, or answers run on into the next turn."""
    controls = set(vocabulary.encoder.controls.values())
    answer = vocabulary.encode_inside(_ANSWER)
    at = _last(rendered.answered, answer)
    after = rendered.answered[at:] if at is not None else rendered.answered[-3:]
    end = next((index for index in after if index in controls), None)
    if end is None:
        yield Finding(
            "turn-never-ends",
            Severity.WARNING,
            "the chat template writes no special token after an answer",
            "turns are kept apart by plain words, or the end's token was lost in a conversion",
            "send a stop string with requests, such as the words that begin the next turn",
        )
    elif end not in stated.merged:
        text = vocabulary.table.whole[end] if end < vocabulary.table.size else None
        yield Finding(
            "turn-end-not-eos",
            Severity.ERROR,
            f"the chat template ends an answer with {end} {text!r}, which no file calls an end",
            "generation_config.json still has the base model's end: answers run on into made-up turns",
            f"add {end} to eos_token_id in generation_config.json, or send stop_token_ids={end}",
        )
    else:
        yield fine("turn-end", f"an answer ends with {end}, which is an end")


def _last(ids: list[int], part: list[int]) -> int | None:
    """Behind the last place where ``part`` stands."""
    for start in range(len(ids) - len(part), -1, -1):
        if part and ids[start : start + len(part)] == part:
            return start + len(part)
    return None
