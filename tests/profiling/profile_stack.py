"""What the services take beside the worker: ``make profile ARGS='--streams 256'``.

Starts worker, scheduler and tokenizer, keeps so many streams running through the door and prints, for each
service and the client, CPU time per step and per 1,000 tokens, its share of the machine and its wake-ups;
with ``--py-spy`` the functions that took most of it. The worker is a paced one unless ``--real``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from processor_time import Taken, taken
from stacks import ProfiledStack

from hundredfold.bench.plan import LoadPlan
from hundredfold.bench.report import Report
from hundredfold.bench.serve import measure
from hundredfold.models import DEFAULT_MODEL

OTHERS = ("scheduler", "tokenizer")


class Watch:
    """Reads the services' accounts when the measurement begins, and starts the profilers then."""

    def __init__(self, stack: ProfiledStack, py_spy: str | None, seconds: float) -> None:
        self._stack = stack
        self._py_spy = py_spy
        self._seconds = seconds
        self._before: dict[str, Taken] = {}
        self._steps = 0
        self._profilers: list[subprocess.Popen[bytes]] = []

    def progress(self, phase: str, sent: int) -> None:
        """As ``bench.serve`` calls it."""
        if phase == "measuring" and not self._before:
            self._steps = self._stack.steps()
            self._before = self._now()
            self._start_profilers()

    def taken(self) -> tuple[Mapping[str, Taken], int]:
        """By service since then, and the steps done."""
        now = self._now()
        steps = self._stack.steps() - self._steps
        for profiler in self._profilers:
            profiler.wait()
        return {name: now[name].since(self._before[name]) for name in now}, steps

    def _now(self) -> dict[str, Taken]:
        return {name: taken(process.pid) for name, process in self._stack.processes.items()}

    def _start_profilers(self) -> None:
        if self._py_spy is None:
            return
        for name in OTHERS:
            output = self._stack.directory / f"{name}.stacks"
            pid = str(self._stack.processes[name].pid)
            command = [self._py_spy, "record", "--nonblocking", "--rate", "200", "--format", "raw"]
            command += ["--duration", str(max(2, int(self._seconds))), "--output", str(output), "--pid", pid]
            self._profilers.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )


def functions(stacks: str) -> list[tuple[str, float, float]]:
    """Functions with their own share and that of all they call, of the samples of py-spy's raw format."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    total = 0
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        names = [frame.strip().rpartition(":")[0] or frame for frame in frames.split(";")]
        total += int(count)
        own[names[-1]] += int(count)
        for name in set(names):
            whole[name] += int(count)
    by_cost = sorted(whole, key=lambda name: (own[name], whole[name]), reverse=True)
    return [(name, own[name] / total, whole[name] / total) for name in by_cost]


def show(report: Report, spent: Mapping[str, Taken], steps: int) -> None:
    """Print the table."""
    seconds, tokens = report.duration_s, report.output_tokens
    machine_s = seconds * len(os.sched_getaffinity(0))
    client_s = float(report.client["cpu_share"] or 0) * seconds
    print(
        f"{tokens} tokens in {seconds:.1f} s: {report.output_tokens_per_s:.0f} tokens/s, {steps} steps of "
        f"{seconds / max(1, steps) * 1e3:.1f} ms, {tokens / max(1, steps):.0f} tokens a step"
    )
    for name, times in (("to the first token", report.ttft_ms), ("between events", report.itl_ms)):
        if times.p50 is not None and times.p99 is not None:
            print(f"{name}: p50 {times.p50:.0f} ms, p99 {times.p99:.0f} ms")
    print(
        f"{'':>10} {'CPU s':>7} {'ms/step':>8} {'s/1000 tokens':>14} {'of machine':>11} {'wake-ups/step':>14}"
    )
    rows = {name: (used.cpu_s, f"{used.wakeups / max(1, steps):.1f}") for name, used in spent.items()}
    rows["client"] = client_s, ""
    rows["delivery"] = spent["tokenizer"].cpu_s + client_s, ""
    for name, (cpu_s, wakeups) in rows.items():
        print(
            f"{name:>10} {cpu_s:7.2f} {cpu_s / max(1, steps) * 1e3:8.2f} {cpu_s / tokens * 1e3:14.3f} "
            f"{cpu_s / machine_s:11.1%} {wakeups:>14}"
        )
    for warning in report.warnings:
        print(f"note: {warning}")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1, help="requests of each stream, one after another")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--real", action="store_true", help="the real worker")
    parser.add_argument("--fixed-ms", type=float, default=23.0, help="of a paced worker's step")
    parser.add_argument("--row-us", type=float, default=890.0, help="beside it for each decode")
    parser.add_argument("--token-us", type=float, default=300.0, help="beside it for each prompt token")
    parser.add_argument("--burn", type=int, default=0, help="threads on which a paced worker computes")
    parser.add_argument("--py-spy", nargs="?", const="py-spy", help="the program, where it is not in PATH")
    parser.add_argument("--scheduler-flag", action="append", default=[], metavar="FLAG")
    parser.add_argument("--worker-flag", action="append", default=[], metavar="FLAG", help="of the real one")
    parser.add_argument("--tokenizer-flag", action="append", default=[], metavar="FLAG")
    args = parser.parse_args()
    py_spy = shutil.which(args.py_spy) if args.py_spy else None
    if args.py_spy and py_spy is None:
        parser.error(f"{args.py_spy} is not installed")
    paced = ["--fixed-ms", "--row-us", "--token-us", "--burn"]
    values = [args.fixed_ms, args.row_us, args.token_us, args.burn]
    worker = [str(part) for pair in zip(paced, values, strict=True) for part in pair]
    with tempfile.TemporaryDirectory(prefix="hundredfold-profile-") as directory:
        flags = {"scheduler": args.scheduler_flag, "tokenizer": args.tokenizer_flag}
        flags["worker"] = args.worker_flag if args.real else []
        stack = ProfiledStack(args.model, Path(directory), args.streams, None if args.real else worker, flags)
        plan = LoadPlan(
            address=stack.door,
            num_requests=args.streams * args.rounds,
            input_len=args.input_len,
            output_len=args.output_len,
            concurrency=args.streams,
            warmup=min(args.streams, 8),
            client_processes=1,
        )
        step_s = (args.fixed_ms + args.streams * args.row_us / 1e3) / 1e3
        with stack.running():
            watch = Watch(stack, py_spy, args.rounds * args.output_len * step_s)
            report = measure(plan, watch.progress)
            spent, steps = watch.taken()
        show(report, spent, steps)
        for name in OTHERS if py_spy is not None else ():
            print(f"\n{name}: own share, share with callees")
            found = functions((Path(directory) / f"{name}.stacks").read_text())
            for function, own, whole in found[:25]:
                print(f"  {own:6.1%} {whole:6.1%}  {function}")


if __name__ == "__main__":
    main()
