"""OpenAI's Python package against the gateway: what applications do with it. Arguments: base URL, model."""

from __future__ import annotations

import asyncio
import itertools
import sys

import openai

CHAT = [{"role": "user", "content": "Name three rivers of Europe."}]


def check(what: str, holds: object) -> None:
    """Say what was tried, and end when it does not hold."""
    if not holds:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")


def chats(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=CHAT, max_tokens=12, temperature=0)
    answer = whole.choices[0]
    check("a chat is answered", answer.message.role == "assistant" and answer.message.content)
    check(
        "usage adds up", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    )
    check("it ends for a reason", answer.finish_reason in ("stop", "length"))

    stream = client.chat.completions.create(
        model=model,
        messages=CHAT,
        max_completion_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("streamed text equals the whole", text == answer.message.content)
    check("the role comes first", chunks[0].choices[0].delta.role == "assistant")
    check("usage comes last", not chunks[-1].choices)
    check("and is the same", chunks[-1].usage.total_tokens == whole.usage.total_tokens)

    parts = [{"role": "developer", "content": "Be brief."}]
    parts.append({"role": "user", "content": [{"type": "text", "text": "Say hello."}]})
    scored = client.chat.completions.create(
        model=model, messages=parts, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2, user="u"
    )
    content = scored.choices[0].logprobs.content
    check(
        "each token has its score and rivals",
        [len(entry.top_logprobs) for entry in content] == [2] * len(content),
    )
    joined = b"".join(bytes(entry.bytes) for entry in content).decode("utf-8", "replace")
    check("bytes of the tokens join to the text", joined == scored.choices[0].message.content)

    seeded = [
        client.chat.completions.create(model=model, messages=CHAT, max_tokens=8, temperature=1.0, seed=5)
        for _ in range(2)
    ]
    check("a seed repeats", seeded[0].choices[0].message.content == seeded[1].choices[0].message.content)


def completions(client: openai.OpenAI, model: str) -> None:
    both = client.completions.create(
        model=model, prompt=["Water boils at", "The capital of France is"], max_tokens=6, temperature=0
    )
    check("two prompts, two answers", [choice.index for choice in both.choices] == [0, 1])
    echoed = client.completions.create(
        model=model, prompt="The capital of France is", echo=True, logprobs=1, max_tokens=1, temperature=0
    ).choices[0]
    check("the prompt is repeated", echoed.text.startswith("The capital of France is"))
    scores = echoed.logprobs
    check("the first token has no score", scores.token_logprobs[0] is None)
    check("the others have", all(score <= 0 for score in scores.token_logprobs[1:]))
    places = [*scores.text_offset, len(echoed.text)]
    cut = [echoed.text[start:end] for start, end in itertools.pairwise(places)]
    check("tokens stand where the offsets say", cut == scores.tokens)
    stopped = client.completions.create(
        model=model, prompt="1 2 3 4", max_tokens=20, temperature=0, stop=["7"], extra_body={"top_k": 1}
    ).choices[0]
    check("a stop string ends it", stopped.finish_reason == "stop" and "7" not in stopped.text)
    chosen = client.completions.create(
        model=model, prompt="x", max_tokens=3, temperature=0, logit_bias={"284": 100}, presence_penalty=0.1
    ).choices[0]
    check("a biased token wins", len(chosen.text) > 0)
    last = list(client.completions.create(model=model, prompt="Hello", max_tokens=4, stream=True))[-1]
    check("a streamed completion ends for a reason", last.choices[0].finish_reason in ("stop", "length"))


def refusals(client: openai.OpenAI, model: str) -> None:
    def refused(kind: type[openai.APIStatusError], **body: object) -> openai.APIStatusError | None:
        try:
            client.chat.completions.create(**{"model": model, "messages": CHAT, "max_tokens": 2, **body})
        except kind as error:
            return error
        return None

    missing = refused(openai.NotFoundError, model="no-such-model")
    check("an unknown model is not found", missing is not None and missing.code == "model_not_found")
    wrong = refused(openai.BadRequestError, temperature=-1)
    check("a wrong value names its parameter", wrong is not None and wrong.param == "temperature")
    unknown = refused(openai.BadRequestError, extra_body={"temprature": 1})
    check("an unknown parameter is named", unknown is not None and unknown.param == "temprature")
    listed = [card.id for card in client.models.list()]
    check("the model is listed", listed == [model] and client.models.retrieve(model).id == model)
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=CHAT, max_tokens=1, extra_headers={"X-Request-ID": "my id/1"}
    )
    check("the request id comes back", raw.headers["x-request-id"] == "my id/1")


async def leaving(base_url: str, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        stream = await client.chat.completions.create(model=model, messages=CHAT, max_tokens=500, stream=True)
        async for _ in stream:
            break
        await stream.close()
        answers = await asyncio.gather(
            *(client.completions.create(model=model, prompt="One", max_tokens=2) for _ in range(8))
        )
        check("eight at once", all(answer.choices for answer in answers))


def main() -> None:
    base_url, model = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    chats(client, model)
    completions(client, model)
    refusals(client, model)
    asyncio.run(leaving(base_url, model))


if __name__ == "__main__":
    main()
