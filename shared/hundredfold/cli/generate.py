"""`hundredfold generate`: stream the answer to one prompt to the terminal."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import click

from hundredfold.cli.numbers import Finite
from hundredfold.cli.talking import RETRY, address_option, failures
from hundredfold.client import Answer, ChatMessage, Client, Delta, GenerateStream

MAX_STDIN_BYTES = 64 * 1024 * 1024


@click.command(name="generate", context_settings={"max_content_width": 110})
@click.argument("text")
@click.option("--chat", is_flag=True, help="Treat TEXT as a user's turn, in the model's chat template.")
@click.option("--system", help="System message that goes before it; implies --chat.")
@click.option("--max-tokens", type=int, help="Most tokens to generate. [default: the rest of the context]")
@click.option("--min-tokens", type=int, help="No end before this many tokens.")
@click.option("--temperature", type=float, help="0 always takes the likeliest token.")
@click.option("--top-p", type=float, help="Keep the smallest set of tokens that reaches this probability.")
@click.option("--top-k", type=int, help="Keep this many likeliest tokens.")
@click.option("--min-p", type=float, help="Drop tokens below this share of the likeliest one's probability.")
@click.option("--repetition-penalty", type=float, help="Above 1: repeat less.")
@click.option("--seed", type=int, help="Makes sampling repeatable.")
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on past the end of sequence.")
@click.option("-n", "n", type=int, help="Answers to generate; each begins with a line of its own.")
@click.option("--beam-width", type=int, help="Search with so many beams instead of sampling.")
@click.option("--length-penalty", type=float, help="Above 1 a beam search favours long answers.")
@click.option("--early-stopping", is_flag=True, default=None, help="End it with the first complete beams.")
@click.option("--model", help="The model to ask for. [default: the one that is served]")
@click.option(
    "--timeout", "timeout_s", type=Finite(0, min_open=True), help="Give up after this many seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of the text.")
@address_option
def command(
    text: str,
    chat: bool,
    system: str | None,
    timeout_s: float | None,
    as_json: bool,
    address: str,
    **sampling: Any,
) -> None:
    """Stream the answer to TEXT; "-" reads it from standard input.

    Sampling settings that are not given are the checkpoint's own. Exit code 0: answered, 1: the server
    refused or failed, 2: wrong command line, 3: no server there or not ready, 130: interrupted.
    """
    text = _standard_input() if text == "-" else text
    if not sampling["stop"]:
        del sampling["stop"]
    prompt: dict[str, Any] = {"text": text}
    if chat or system is not None:
        messages: list[ChatMessage] = [{"role": "user", "content": text}]
        prompt = {
            "chat": [{"role": "system", "content": system}, *messages] if system is not None else messages
        }
    with failures(address), Client(address, retry=RETRY) as client:
        try:
            stream = client.generate(**prompt, timeout=timeout_s, **sampling)
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from None
        watch = _read(stream, show=not as_json and sampling["n"] in (None, 1))
    answer = stream.answer
    if as_json:
        click.echo(json.dumps(_report(answer, watch), ensure_ascii=False))
    else:
        if len(answer.choices) > 1:
            _show_choices(answer)
        elif not answer.text.endswith("\n"):
            click.echo()
        if sys.stderr.isatty():
            click.secho(_figures(answer, watch), dim=True, err=True)


@dataclass
class _Watch:
    """When things arrived, in seconds of the monotonic clock."""

    begin: float = field(default_factory=time.monotonic)
    first: float | None = None
    last: float = 0.0

    def tick(self) -> None:
        self.last = time.monotonic()
        if self.first is None:
            self.first = self.last


def _read(stream: GenerateStream, *, show: bool) -> _Watch:
    watch = _Watch()
    with stream:
        for event in stream:
            if isinstance(event, Delta):
                watch.tick()
                if show and event.text:
                    click.echo(event.text, nl=False)
                    sys.stdout.flush()
    return watch


def _show_choices(answer: Answer) -> None:
    for number, choice in enumerate(answer.choices, 1):
        score = "" if choice.beam_score is None else f", score {choice.beam_score:.4f}"
        click.secho(f"--- {number} of {len(answer.choices)} ({choice.finish_reason}{score})", bold=True)
        click.echo(choice.text, nl=not choice.text.endswith("\n"))


def _standard_input() -> str:
    raw = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(raw) > MAX_STDIN_BYTES:
        raise click.UsageError(f"standard input holds more than {MAX_STDIN_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is no UTF-8: {error.reason} at byte {error.start}") from None


def _report(answer: Answer, watch: _Watch) -> dict[str, Any]:
    choice = answer.choices[0]
    timings = answer.timings
    choices = [
        {
            "text": each.text,
            "token_ids": list(each.token_ids),
            "finish_reason": each.finish_reason,
            "matched": each.matched,
            "beam_score": each.beam_score,
        }
        for each in answer.choices
    ]
    return {
        "request_id": answer.started.request_id,
        "model": answer.started.model,
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "matched": choice.matched,
        "choices": choices,
        "seed": answer.started.sampling.seed,
        "usage": {
            "prompt_tokens": answer.usage.prompt_tokens,
            "completion_tokens": answer.usage.completion_tokens,
            "cached_tokens": answer.usage.cached_tokens,
        },
        "timings": {
            "ttft_s": None if watch.first is None else watch.first - watch.begin,
            "total_s": watch.last - watch.begin if watch.first is not None else None,
            "tokens_per_s": _rate(answer, watch),
            "queue_s": timings.queue.ToNanoseconds() / 1e9,
            "prefill_s": timings.prefill.ToNanoseconds() / 1e9,
            "decode_s": timings.decode.ToNanoseconds() / 1e9,
            "preemptions": timings.preemptions,
        },
    }


def _figures(answer: Answer, watch: _Watch) -> str:
    parts = [f"{answer.usage.completion_tokens} tokens"]
    rate = _rate(answer, watch)
    if rate is not None:
        parts.append(f"{rate:.1f} tokens/s")
    if watch.first is not None:
        parts.append(f"first after {(watch.first - watch.begin) * 1e3:.0f} ms")
    if answer.usage.cached_tokens:
        parts.append(f"{answer.usage.cached_tokens} of {answer.usage.prompt_tokens} prompt tokens cached")
    return " · ".join([*parts, answer.finish_reason])


def _rate(answer: Answer, watch: _Watch) -> float | None:
    """Tokens per second from the first to the last, as the server timed them; as seen here if it did not."""
    count = answer.usage.completion_tokens - 1
    seconds = answer.timings.decode.ToNanoseconds() / 1e9
    if seconds <= 0 and watch.first is not None:
        seconds = watch.last - watch.first
    return count / seconds if count > 0 and seconds > 0 else None
