"""`hundredfold info`: what runs behind an address, and why it was chosen."""

from __future__ import annotations

import json

import click
from google.protobuf.json_format import MessageToDict
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hundredfold.cli.talking import RETRY, address_option, failures
from hundredfold.client import Client
from hundredfold.v1.control_pb2 import GetServerInfoResponse, RuntimeInfo, ServiceInfo

MIB = 1024 * 1024


@click.command(name="info")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as one JSON object.")
@address_option
def command(as_json: bool, address: str) -> None:
    """Show each service, its model, the choices its runtime made and why, and its plugins.

    Any service can be asked; the door includes the services behind it.
    """
    with failures(address), Client(address, retry=RETRY) as client:
        services = client.info(timeout=10)
    if as_json:
        response = GetServerInfoResponse(services=services)
        click.echo(json.dumps(MessageToDict(response, preserving_proto_field_name=True), ensure_ascii=False))
    else:
        console = Console()
        for service in services:
            console.print(_service(service))


def _service(service: ServiceInfo) -> RenderableType:
    parts: list[RenderableType] = [_facts(service)]
    if service.HasField("runtime"):
        parts += [_runtime(service.runtime), _selections(service.runtime)]
    if service.settings:
        settings = _pairs("settings")
        for name, value in sorted(service.settings.items()):
            settings.add_row(escape(name), escape(value))
        parts.append(settings)
    if service.plugins:
        parts.append(_plugins(service))
    return Group(*parts, "")


def _facts(service: ServiceInfo) -> Table:
    table = _pairs(f"{service.service} · {service.state}")
    if service.address:
        table.add_row("address", escape(service.address))
    if service.reason:
        table.add_row("not in use", escape(service.reason))
    if service.version:
        version = f"{service.version} (incarnation {service.incarnation or 'unknown'})"
        table.add_row("version", escape(version))
        table.add_row("uptime", f"{service.uptime.ToSeconds()} s")
    if service.resident_bytes:
        peak = f", peak {service.peak_resident_bytes / MIB:.0f} MiB" if service.peak_resident_bytes else ""
        table.add_row("memory", f"{service.resident_bytes / MIB:.0f} MiB{peak}")
    if service.HasField("model"):
        model = service.model
        if model.name:  # a scheduler knows the fingerprint alone
            architecture = f" ({model.architecture})" if model.architecture else ""
            table.add_row("model", escape(f"{model.name}{architecture}"))
        table.add_row("fingerprint", escape(model.fingerprint[:16]))
        if model.max_model_len:
            table.add_row("context", f"{model.max_model_len} tokens, vocabulary {model.vocab_size}")
        if model.num_parameters:
            table.add_row("parameters", f"{model.num_parameters:,}")
    if service.libraries:
        versions = (f"{name} {version}" for name, version in sorted(service.libraries.items()))
        table.add_row("libraries", escape(", ".join(versions)))
    return table


def _runtime(runtime: RuntimeInfo) -> Table:
    table = _pairs("runtime")
    table.add_row("device", escape(f"{runtime.device}, {runtime.dtype}, {runtime.num_threads} threads"))
    table.add_row("weights", f"{runtime.weight_bytes / MIB:.0f} MiB")
    cache = runtime.num_blocks * runtime.bytes_per_block / MIB
    tokens = runtime.num_blocks * runtime.block_size
    blocks = f"{runtime.num_blocks} blocks of {runtime.block_size} tokens"
    table.add_row("cache", f"{blocks} = {tokens} tokens, {cache:.0f} MiB")
    return table


def _selections(runtime: RuntimeInfo) -> Table:
    table = Table("choice", "taken", "why", "refused", title="choices", title_justify="left")
    for choice in runtime.selections:
        refused = "\n".join(f"{other.name}: {'; '.join(other.reasons)}" for other in choice.refused)
        table.add_row(*map(escape, (choice.subject, choice.chosen, choice.reason, refused)))
    return table


def _plugins(service: ServiceInfo) -> Table:
    table = Table("group", "name", "state", "from", "", title="plugins", title_justify="left")
    for plugin in service.plugins:
        state = Text(plugin.state, style="red" if plugin.state == "failed" else "")
        group = plugin.group.removeprefix("hundredfold.")
        note = plugin.error or plugin.description
        table.add_row(escape(group), escape(plugin.name), state, escape(plugin.distribution), escape(note))
    return table


def _pairs(title: str) -> Table:
    table = Table(title=escape(title), title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table
