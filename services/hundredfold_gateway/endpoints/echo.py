"""Prompts that are to be repeated before their completions: as text, and as ids where scores are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hundredfold.client import AsyncClient
from hundredfold_gateway.openai.completion import CompletionRequest, Prompt
from hundredfold_gateway.openai.whole import Echo

_AT_ONCE = 16


async def echo_prompts(
    client: AsyncClient, asked: CompletionRequest, timeout_s: float | None
) -> tuple[Sequence[Prompt], Sequence[Echo | None]]:
    """The prompts to generate from, and what of them is repeated; nothing is asked without ``echo``.

    A text whose scores are wanted goes on as ids, so that each score stands beside its token.

    Raises:
        RequestFailed: The door refuses a prompt.
    """
    if not asked.echo:
        return asked.prompts, [None] * len(asked.prompts)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(prompt: Prompt) -> tuple[Prompt, Echo]:
        async with turns:
            return await _echo(client, asked, prompt, timeout_s)

    found = await asyncio.gather(*map(one, asked.prompts))
    return [prompt for prompt, _ in found], [echo for _, echo in found]


async def _echo(
    client: AsyncClient, asked: CompletionRequest, prompt: Prompt, timeout_s: float | None
) -> tuple[Prompt, Echo]:
    if isinstance(prompt, str):
        if asked.logprobs is None:
            return prompt, Echo(prompt)
        text = prompt
        ids = await client.encode(
            prompt, add_special_tokens=asked.add_special_tokens, model=asked.model, timeout=timeout_s
        )
    else:
        ids = prompt
        text = await client.decode(
            ids, skip_special_tokens=asked.skip_special_tokens, model=asked.model, timeout=timeout_s
        )
    if asked.logprobs is None or not ids:
        return ids, Echo(text)
    first = await client.decode(ids[:1], skip_special_tokens=False, model=asked.model, timeout=timeout_s)
    return ids, Echo(text, first)
