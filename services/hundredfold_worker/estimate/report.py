"""The estimate for people: tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hundredfold_worker.estimate.estimate import Estimate
from hundredfold_worker.estimate.fit import CPU_CACHE_TOKENS
from hundredfold_worker.estimate.placement import Placed
from hundredfold_worker.estimate.speed import REACHED
from hundredfold_worker.sizes import number, show

_BAR = 44
_COLOURS = (("weights", "cyan"), ("process", "blue"), ("step", "magenta"), ("cache", "green"))


def render(found: Estimate) -> RenderableType:
    """Everything, one below the other."""
    parts: list[RenderableType] = [_model(found), "", _memory(found)]
    for table in (_speed(found), _placement(found), _remedies(found)):
        if table is not None:
            parts += ["", table]
    return Group(*parts)


def _table(title: str, *columns: str, numbers: int = 0) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        side: JustifyMethod = "right" if 0 < index <= numbers else "left"
        table.add_column(name, justify=side, header_style="dim", no_wrap=index == 0)
    return table


def _model(found: Estimate) -> RenderableType:
    outline, machine = found.source.outline, found.case.machine
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    active = ""
    if any(part.copies > 1 for part in outline.parts):
        active = f", {_billions(outline.active_parameters)} of them for a token"
    facts.add_row("model", f"[bold]{escape(found.source.name)}[/]  {escape(outline.architecture)}")
    facts.add_row("parameters", f"{_billions(outline.num_parameters)}{active} in {outline.num_layers} layers")
    exact = "" if found.source.file_bytes is not None else " (from the config: no files here)"
    facts.add_row("stored", f"{show(found.source.stored_bytes)}{exact}")
    facts.add_row("loaded as", escape(_forms(found)))
    facts.add_row(
        "runs on",
        f"{machine.device}, {machine.dtype}, cache {found.case.load.encoding.value}; "
        f"{show(machine.budget)} = {machine.utilization:.0%} of {show(machine.total)}",
    )
    return facts


def _forms(found: Estimate) -> str:
    whole = sum(found.forms.values())
    return ", ".join(f"{label} {count / whole:.0%}" for label, count in list(found.forms.items())[:4])


def _memory(found: Estimate) -> RenderableType:
    case = found.case
    now, wanted = case.now, case.wanted
    cache = wanted * now.blocks_per_sequence * now.block
    sizes = {"weights": now.weights, "process": now.base, "step": now.step, "cache": cache}
    texts = {
        "weights": "in memory, angles and norms included",
        "process": "libraries",
        "step": f"activations of {case.load.max_num_batched_tokens} tokens, about",
        "cache": f"{_sequences(wanted)} of {case.load.max_model_len:,} tokens, {now.token:,} bytes a token",
    }
    table = _table("Memory", "", "bytes", "", numbers=1)
    for name, colour in _COLOURS:
        table.add_row(Text(f"■ {name}", style=colour), show(sizes[name]), Text(texts[name], style="dim"))
    free = now.budget - case.needs
    table.add_row(
        Text("  free" if free >= 0 else "  missing", style="bold" if free >= 0 else "bold red"),
        Text(show(abs(free)), style="bold" if free >= 0 else "bold red"),
        Text(f"of {show(now.budget)}", style="dim"),
    )
    lines: list[RenderableType] = [table, _bar(sizes, now.budget), _verdict(found)]
    lines += [Text(note, style="dim") for note in _notes(found)]
    return Group(*lines)


def _bar(sizes: dict[str, int], budget: int) -> Text:
    """What is taken of the budget; what does not fit goes past its end in red."""
    whole = max(budget, sum(sizes.values()), 1)
    bar, done, drawn = Text(), 0, 0
    limit = round(budget / whole * _BAR)
    for name, colour in _COLOURS:
        done += sizes[name]
        end = round(done / whole * _BAR)
        inside = max(0, min(end, limit) - drawn)
        bar.append("█" * inside, style=colour)
        bar.append("█" * (max(drawn + inside, end) - drawn - inside), style="red")
        drawn = max(drawn, end)
    bar.append("░" * (_BAR - drawn), style="bright_black")
    bar.append(f"  {sum(sizes.values()) / max(budget, 1):.0%}", style="bold")
    return bar


def _verdict(found: Estimate) -> Text:
    case = found.case
    now, load = case.now, case.load
    if now.for_cache < 0:
        return Text("✗ The weights alone do not fit.", style="bold red")
    if not case.fits:
        shorter = f"; {_sequences(case.wanted)} fit up to {now.length(case.wanted):,} tokens each"
        said = f"✗ {_sequences(case.wanted)} of {load.max_model_len:,} tokens do not fit: {now.sequences} do"
        return Text(said + (shorter if now.length(case.wanted) else ""), style="bold red")
    fitting = f"✓ {_sequences(now.sequences)} of {load.max_model_len:,} tokens fit at once"
    return Text(f"{fitting}, {now.tokens:,} tokens in the cache.", style="bold green")


def _notes(found: Estimate) -> Iterator[str]:
    outline = found.source.outline
    if found.capped:
        blocks = found.case.now.blocks
        yield (
            f"A CPU's automatic cache stops at {CPU_CACHE_TOKENS:,} tokens; "
            f"--num-kv-blocks {blocks} takes all that fits."
        )
    if outline.window is not None:
        yield f"Every layer has a window of {outline.window:,} tokens: older blocks are free for others."
    elif outline.windowed_layers:
        yield (
            f"{outline.windowed_layers} of {outline.num_layers} layers have a window; no block is freed for "
            "it, since the others see all."
        )


def _speed(found: Estimate) -> RenderableType | None:
    machine = found.case.machine
    if not found.speeds:
        return Text(
            "Speed: this machine was not measured; --measure does it in some seconds, or state --bandwidth.",
            style="dim",
        )
    table = _table(
        f"Decoding at {found.context:,} tokens of context",
        "at once",
        "tokens/s, about",
        "from memory",
        "per sequence",
        "bound by",
        numbers=3,
    )
    table.columns[0].justify = "right"
    for speed in found.speeds:
        table.add_row(
            f"{speed.sequences}",
            Text(number(speed.expected), style="bold"),
            number(speed.ceiling),
            number(speed.expected / speed.sequences),
            speed.bound,
        )
    rates = f"{(machine.read_bytes_per_s or 0) / 1e9:,.1f} GB/s"
    operations = machine.operations_per_s
    rates += "".join(f", {name} {rate / 1e9:,.0f} GOP/s" for name, rate in operations.items() if rate)
    about = (
        f"{rates}; {machine.measured}. About: {REACHED:.0%} of what memory and arithmetic allow; weights "
        "that a large third-level cache keeps are read faster."
    )
    return Group(table, Text(about, style="dim"))


def _placement(found: Estimate) -> RenderableType | None:
    if not found.placed:
        return None
    table = _table("Placement", "device", "weights", "cache", "working", "free", "layers", numbers=4)
    for placed in found.placed:
        table.add_row(
            escape(placed.device),
            show(placed.weights),
            show(placed.cache),
            show(placed.working),
            "" if placed.limit is None else show(placed.limit - placed.used),
            _layers(placed, found.source.outline.num_layers),
        )
    return table


def _layers(placed: Placed, layers: int) -> Text:
    """A row of cells, one for a layer or for several."""
    if placed.first is None or placed.last is None:
        return Text(" + ".join(placed.ends) or "nothing", style="dim")
    width = min(layers, 32)
    cells = Text()
    for cell in range(width):
        first, last = cell * layers // width, ((cell + 1) * layers - 1) // width
        here = placed.first <= last and first <= placed.last
        cells.append("■" if here else "·", style="cyan" if here else "bright_black")
    said = f" {placed.first}-{placed.last}" + "".join(f" + {end}" for end in placed.ends)
    return cells.append(said)


def _remedies(found: Estimate) -> RenderableType | None:
    if not found.remedies:
        return None
    title = "If memory is short" if found.case.fits else "What would help"
    table = _table(title, "setting", "frees", "sequences then", "enough", "costs", numbers=2)
    for remedy in found.remedies:
        enough = Text("✓", style="green") if remedy.enough else Text("not alone", style="yellow")
        table.add_row(
            Text(remedy.setting, style="bold"),
            show(remedy.frees),
            f"{remedy.sequences:,}",
            enough,
            remedy.costs,
        )
    return table


def _sequences(count: int) -> str:
    return f"{count:,} sequence" if count == 1 else f"{count:,} sequences"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"


def boxed(found: Estimate) -> RenderableType:
    """The tables in a frame."""
    return Panel(render(found), title="estimate", title_align="left", border_style="dim", expand=False)
