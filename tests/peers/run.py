"""Peers side by side: ``PYTHONPATH=tests python -m peers.run``, or ``make bench-peers``.

Same model, prompts and lengths; each engine in an environment of its own, started once and asked in turns
(A B A B), alone at work while it is asked. The first run makes the environments: that takes long, and one
without a wheel is compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from hundredfold.bench.environments import EnvironmentFailed, environments_dir, prepare
from hundredfold.bench.ladder.climb import MEASURE_ERRORS, machine
from hundredfold.bench.plan import LoadPlan
from hundredfold.bench.serve import measure
from hundredfold.bench.stack import MAKE_UP, StackOptions, running_stack
from hundredfold.models import DEFAULT_MODEL, fingerprint, pull
from peers.driver import Answer, Driver, PeerFailed
from peers.report import OURS, PeerReport, PeerRow, markdown, render
from peers.roster import DRIVERS, TRANSFORMERS, Checkpoints, Peer, roster

START_LIMIT_S = 600.0
LOAD_LIMIT_S = 600.0
TOP_ID = 40_000

Ask = Callable[[int], float]
"""Runs so many requests at once; output tokens a second."""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", default="1,64,256", help="requests at once, with commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--only", action="append", help="a peer's key, or hundredfold; may be given again")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    batches = sorted({int(batch) for batch in options.batches.split(",")})
    lengths = (options.input_len, options.output_len)
    known = [OURS, *(peer.key for peer in roster())]
    unknown = set(options.only or ()) - set(known)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(known)}")
    chosen = [peer for peer in roster() if not options.only or peer.key in options.only]
    with_ours = not options.only or OURS in options.only
    rows = compare(chosen, batches, lengths, options.rounds, with_ours)
    report = PeerReport(rows, batches, DEFAULT_MODEL, machine(), *lengths, options.rounds)
    Console().print(render(report))
    if options.json:
        options.json.write_text(report.to_json(), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(markdown(report), encoding="utf-8")
    return 0 if any(row.runs for row in rows) else 1


def compare(
    chosen: Sequence[Peer], batches: Sequence[int], lengths: tuple[int, int], rounds: int, with_ours: bool
) -> list[PeerRow]:
    """Start every engine, then ask them in turns, round after round."""
    rows: list[PeerRow] = []
    asked: list[tuple[PeerRow, Ask, int]] = []
    with ExitStack() as running:
        model = None
        for peer in chosen:
            row = PeerRow(peer.key, peer.title)
            rows.append(row)
            _say(f"starting {peer.title}")
            try:
                model = model or checkpoints()
                driver = running.enter_context(closing(start(peer, model)))
            except (PeerFailed, EnvironmentFailed) as failure:
                row.failure = str(failure)
                _say(f"{peer.title} could not run: {failure}")
                continue
            row.versions = driver.versions
            asked.append((row, _asker(driver, lengths), peer.most))
        if with_ours:
            row = PeerRow(OURS, "hundredfold, its default, through the door", {OURS: version("hundredfold")})
            rows.append(row)
            _say(f"starting {row.title}")
            try:
                asked.append((row, running.enter_context(ours(lengths)), 1_000_000))
            except MEASURE_ERRORS as failure:
                row.failure = str(failure)
        for number in range(rounds):
            for batch in batches:
                for row, ask, most in asked:
                    if batch <= most and batch not in row.failures:
                        _measure(row, ask, batch, number + 1)
    return rows


def _measure(row: PeerRow, ask: Ask, batch: int, number: int) -> None:
    try:
        speed = ask(batch)
    except (PeerFailed, *MEASURE_ERRORS) as failure:
        row.failures[batch] = str(failure)
        _say(f"{row.title}, {batch} at once: {failure}")
        return
    row.runs.setdefault(batch, []).append(speed)
    _say(f"round {number}, {batch} at once: {row.title} {speed:,.1f} tokens/s")


def start(peer: Peer, model: Checkpoints) -> Driver:
    """A peer that is ready. Raises PeerFailed, EnvironmentFailed."""
    return Driver(
        prepare(peer.environment, _say), DRIVERS / peer.script, [*peer.arguments(model)], START_LIMIT_S
    )


def checkpoints() -> Checkpoints:
    """The default model in every form, made once. Raises EnvironmentFailed, PeerFailed."""
    files = pull(DEFAULT_MODEL)
    place = environments_dir() / "models" / fingerprint(files)[:16]
    found = Checkpoints(files.weights[0], place / "dense", place / "w8a8")
    done = place / "complete"
    if not done.exists():
        command = [prepare(TRANSFORMERS, _say), DRIVERS / "convert.py", found.gguf, found.dense, found.w8a8]
        ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            words = ran.stderr.strip().splitlines() or ["no word"]
            raise PeerFailed(f"the checkpoint could not be converted: {words[-1]}")
        done.touch()
    return found


@contextmanager
def ours(lengths: tuple[int, int]) -> Iterator[Ask]:
    """Our services as `make up` starts them. Raises StackError."""
    with running_stack(StackOptions(DEFAULT_MODEL, MAKE_UP)) as stack:

        def ask(batch: int) -> float:
            plan = LoadPlan(
                stack.address,
                num_requests=batch,
                input_len=lengths[0],
                output_len=lengths[1],
                concurrency=batch,
                client_processes=1,
                timeout_s=LOAD_LIMIT_S,
            )
            report = measure(plan, lambda _phase, _sent: None)
            if report.failed:
                raise PeerFailed(next(iter(report.failure_examples), f"{report.failed} requests failed"))
            return report.output_tokens_per_s

        ask(min(4, os.cpu_count() or 1))  # the first steps are no measure
        yield ask


def _asker(driver: Driver, lengths: tuple[int, int]) -> Ask:
    def ask(batch: int) -> float:
        load = {"batch": batch, "input_len": lengths[0], "output_len": lengths[1], "top_id": TOP_ID}
        answer: Answer = driver.ask(load, LOAD_LIMIT_S)
        if answer.tokens != batch * lengths[1]:
            raise PeerFailed(f"{answer.tokens} tokens came, {batch * lengths[1]} were asked for")
        return answer.tokens_per_s

    return ask


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
