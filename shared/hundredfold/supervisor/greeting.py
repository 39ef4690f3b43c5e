"""What a person is shown once the house is ready: addresses, model, an example, and a sample answer."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from hundredfold.client import AsyncClient, AsyncGenerateStream, NotPossible, RequestFailed
from hundredfold.v1.control_pb2 import ServiceInfo

SAMPLE_PROMPT = "In two sentences: why is the sky blue?"
SAMPLE_TOKENS = 64
_COMMAND = "hundredfold"

_NAMES = {"tokenizer": "door", "gateway": "http"}
"""What a service that clients talk to is called."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens.

    Attributes:
        service: Its name.
        listen: Its public addresses, comma-separated.
    """

    service: str
    listen: str


def ready_panel(
    addresses: Sequence[Address], model: str, services: Sequence[ServiceInfo], seconds: float
) -> Panel:
    """The panel that says where everything is; ``seconds`` is how long the start took."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for address in addresses:
        shown = escape(address.listen)
        kind, _, number = address.service.partition("-")
        name = f"{_NAMES[kind]} {number}".rstrip() if kind in _NAMES else None
        table.add_row(name or address.service, f"[bold]{shown}[/bold]" if name else shown)
    table.add_row("model", escape(_model(model, services)))
    runtimes = [_runtime(service) for service in services if service.HasField("runtime")]
    for runtime in dict.fromkeys(runtimes):
        table.add_row("runtime", escape(runtime))
    where = {address.service: address.listen.split(",")[0] for address in addresses}
    door = where["tokenizer"]
    examples: list[RenderableType] = [
        "",
        f'[dim]$[/dim] {escape(_program())} generate "The sky is" --address {escape(door)}',
        "[dim]$[/dim] grpcurl -plaintext -import-path proto \\",
        "    -proto hundredfold/v1/generation.proto \\",
        f'    -d \'{{"text": "The sky is"}}\' {escape(door)} \\',
        "    hundredfold.v1.GenerationService/Generate",
        *(_curl(where["gateway"]) if "gateway" in where else ()),
        "",
        "[dim]Ctrl-C finishes what runs, then stops.[/dim]",
    ]
    title = f"hundredfold is ready after {seconds:.1f} s"
    return Panel(Group(table, *examples), title=title, title_align="left", border_style="green", expand=False)


def _curl(listen: str) -> tuple[str, str]:
    """A completion over HTTP: any model has those, a chat needs a template."""
    socket = listen.removeprefix("unix:")
    target = f"http://{listen}" if socket == listen else f"--unix-socket {socket} http://localhost"
    return (
        f"[dim]$[/dim] curl {escape(target)}/v1/completions \\",
        "    -H 'content-type: application/json' -d '{\"prompt\": \"The sky is\"}'",
    )


def _program() -> str:
    """This command as a shell finds it: one out of an environment that is not entered has a path."""
    called = Path(sys.argv[0])
    if called.name != _COMMAND or not called.exists():
        return _COMMAND
    found = shutil.which(_COMMAND)
    return _COMMAND if found is not None and called.samefile(found) else str(called)


async def stream_sample(client: AsyncClient, console: Console) -> None:
    """Ask the model something and show its answer as it comes."""
    console.print(f"\n[dim]{escape(SAMPLE_PROMPT)}[/dim]")
    try:
        chat = client.generate(
            chat=[{"role": "user", "content": SAMPLE_PROMPT}], max_tokens=SAMPLE_TOKENS, temperature=0
        )
        try:
            await _show(chat)
        except NotPossible:  # a base model has no chat template
            await _show(client.generate(SAMPLE_PROMPT, max_tokens=SAMPLE_TOKENS, temperature=0))
    except RequestFailed as error:
        console.print(f"[red]the sample failed:[/red] {escape(str(error))}")


async def _show(stream: AsyncGenerateStream) -> None:
    async for piece in stream.texts():
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n\n")
    sys.stdout.flush()


def _model(model: str, services: Sequence[ServiceInfo]) -> str:
    for service in services:
        if service.HasField("model") and service.model.max_model_len:
            return f"{service.model.name}, {service.model.max_model_len} tokens of context"
    return model


def _runtime(service: ServiceInfo) -> str:
    runtime = service.runtime
    chosen = {choice.subject: choice.chosen for choice in runtime.selections}
    parts = [runtime.dtype, f"on {runtime.device}"]
    parts += [
        f"{subject} {chosen[subject]}"
        for subject in ("quantization", "attention", "kernels", "kv_cache")
        if subject in chosen
    ]
    return ", ".join(filter(None, parts))
