"""The command: what a model needs and gives, for a machine that may be another one."""

from __future__ import annotations

import sys
from typing import Any

import click

from hundredfold.bench.ceilings import CeilingsError, keep, measure_ceilings
from hundredfold.cli.numbers import Finite
from hundredfold.errors import StartError
from hundredfold_worker.estimate.placement import Device
from hundredfold_worker.sizes import parse

_HELP = """Tell what MODEL needs and gives, without loading it.

MODEL is a catalog name, a directory, a .gguf file, the id of a pulled repository, or a config.json alone,
of a model that is not here. Sizes come from the files' headers where there are files.

\b
    hundredfold estimate smollm2-135m --kv-cache-dtype int8 --concurrency 64
    hundredfold estimate ./llama-70b/config.json --max-memory 0=40GiB,1=40GiB,cpu=120GiB

Speed comes from this machine's memory bandwidth and arithmetic, which `bench ladder` or --measure measure
once; --bandwidth and --operations state another machine's. Exit code 1 when what is wanted does not fit.
"""


class _Size(click.ParamType):  # type: ignore[type-arg] # generic in new versions of click alone
    """``40GiB``, ``800GB/s``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, above 0."""
        try:
            size = parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size <= 0:
            self.fail(f"'{value}' has to be above 0", param, ctx)
        return size


class _Memories(click.ParamType):  # type: ignore[type-arg] # as above
    """``0=40GiB,cpu=120GiB``."""

    name = "memories"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Device, ...]:
        """Devices in order."""
        if isinstance(value, tuple):
            return value
        devices: list[Device] = []
        for item in str(value).split(","):
            name, equals, size = item.strip().partition("=")
            if not name or not equals:
                self.fail(f"'{item}' is no DEVICE=SIZE such as 0=40GiB or cpu=120GiB", param, ctx)
            if name in {device.name for device in devices}:
                self.fail(f"device '{name}' stands there twice", param, ctx)
            devices.append(Device(name, _Size().convert(size, param, ctx)))
        return tuple(devices)


@click.command(name="estimate", help=_HELP, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option("--dtype", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), default="auto")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--quantization", default="auto", help="Quantized at load: fast, int8 or another quantizer, "
              "or a format; auto: as stored.")  # fmt: skip
@click.option("--quantization-exclude", default="", help="Layers not to quantize, as patterns.")
@click.option("--activations", type=click.Choice(["auto", "float", "int8"]), default="auto")
@click.option("--attention", default="auto", help="Attention plugin, such as sparse; it may keep more.")
@click.option("--kv-cache-dtype", default="auto", help="auto, fp32, bf16, int8, fp8, fp8_e5m2, int4.")
@click.option("--max-model-len", type=click.IntRange(2), help="Longest sequence; the checkpoint's.")
@click.option("--max-num-seqs", type=click.IntRange(1, 4096), default=256, show_default=True)
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Tokens of a step.")
@click.option("--block-size", type=click.IntRange(16, 256), default=32, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), help="Sequences wanted at once; as many as fit.")
@click.option("--context", type=click.IntRange(1), help="Tokens of a sequence for the speed; 1024.")
@click.option("--memory", type=_Size(), metavar="SIZE", help="Memory of the device; this machine's.")
@click.option("--memory-utilization", type=Finite(0, 1, min_open=True), help="Share of it.")
@click.option("--bandwidth", type=_Size(), metavar="SIZE/s", help="Bytes a second that memory gives.")
@click.option("--operations", type=_Size(), metavar="N/s", help="Operations a second; a product counts 2.")
@click.option("--measure", is_flag=True, help="Measure this machine first: some seconds, every core.")
@click.option("--max-memory", "devices", type=_Memories(), default=(), metavar="DEVICE=SIZE,…",
              help="Where which layers would lie.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(**values: Any) -> None:
    """See ``_HELP``."""
    from hundredfold_worker.estimate.estimate import Asked, estimate
    from hundredfold_worker.estimate.machine import Wish

    as_json = values.pop("as_json")
    wish = Wish(
        values.pop("device"),
        values.pop("dtype"),
        values.pop("memory"),
        values.pop("memory_utilization"),
        values.pop("bandwidth"),
        values.pop("operations"),
    )
    exclude = tuple(filter(None, values.pop("quantization_exclude").split(",")))
    try:
        if values.pop("measure"):
            keep(measure_ceilings())
        found = estimate(Asked(wish=wish, quantization_exclude=exclude, **values))
    except (StartError, CeilingsError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        from hundredfold_worker.estimate.as_json import to_json

        sys.stdout.write(to_json(found) + "\n")
    else:
        from rich.console import Console

        from hundredfold_worker.estimate.report import boxed

        Console().print(boxed(found))
    sys.exit(0 if found.case.fits else 1)
