"""Memory under load for a long time: ``make soak``, or ``ARGS='--minutes 5 --json FILE'``.

Starts worker, scheduler, tokenizer and gateway as ``make up`` does, sends requests of all kinds at ``--rate``
through door and gateway (some are cancelled; prompts are short, long, alike at the begin or full of copies),
among them crowds of 1 to ``--burst`` at once, and samples each process's resident memory. Prints where each
stood after the settling time and at the end, its slope with a 95 % bound, and the worker's height beside what
it announced at start. Exit code 1 when one grows, a request fails or the worker holds more than it said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from growth import Growth, growth
from stacks import ProfiledStack

from hundredfold.client import AsyncClient
from hundredfold.models import DEFAULT_MODEL

SAMPLE_S = 5.0
MOST_OVER = 0.10
"""Of what the worker announced: what it may hold beyond."""
AS_MAKE_UP = ("--kv-cache-dtype=int8", "--quantization=fast")
CROWD_EVERY_S = 30.0
WORDS = (
    "the river of a small town where light comes slowly over hills; people talk of bread, rain, time".split()
)


@dataclass(slots=True)
class Samples:
    """Resident bytes by service, at the same moments for all."""

    seconds: list[float] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    """Ended so far."""


class Soak:
    """Load and samples on one event loop."""

    def __init__(self, stack: ProfiledStack, rate: float, seed: int, output_len: int) -> None:
        self.samples = Samples()
        self.outcomes: Counter[str] = Counter()
        self._stack = stack
        self._rate = rate
        self._random = random.Random(seed)
        self._output_len = output_len
        self._prefix = " ".join(self._random.choices(WORDS, k=300))
        self._processes = {name: psutil.Process(process.pid) for name, process in stack.processes.items()}

    async def run(self, seconds: float, burst: int) -> None:
        """A burst to reach every buffer's height, then single requests at their times and crowds among them,
        then a burst again.
        """
        async with AsyncClient(self._stack.door) as client:
            sampler = asyncio.create_task(self._sample())
            await self._together(client, burst)
            begun, running = time.monotonic(), set[asyncio.Task[None]]()
            crowd_at = begun
            while (now := time.monotonic()) < begun + seconds:
                arrivals = 1
                if now >= crowd_at:
                    crowd_at, arrivals = now + CROWD_EVERY_S, round(burst ** self._random.random())
                for _ in range(min(arrivals, max(8, burst) - len(running))):  # a slow machine gets less
                    running.add(task := asyncio.create_task(self._one(client)))
                    task.add_done_callback(running.discard)
                await asyncio.sleep(self._random.expovariate(self._rate))
            await asyncio.gather(*running)
            await self._together(client, burst)
            sampler.cancel()

    async def _together(self, client: AsyncClient, count: int) -> None:
        await asyncio.gather(*(self._one(client) for _ in range(count)))

    async def _one(self, client: AsyncClient) -> None:
        text = self._text()
        length = self._random.randint(1, self._output_len * self._random.choice((1, 1, 1, 8)))
        kind = self._random.choice(("stream", "once", "leaves", "http", "http stream", "stops"))
        try:
            await self._send(client, kind, text, length)
        except Exception as error:
            kind = f"{kind}: {type(error).__name__}: {error}"[:200]
        self.outcomes[kind] += 1

    def _text(self) -> str:
        words = self._random.choices(WORDS, k=self._random.randint(4, 90))
        kind = self._random.choices(("short", "prefix", "copies", "long"), (6, 2, 2, 1))[0]
        if kind == "prefix":
            return self._prefix + " " + " ".join(words)
        if kind == "long":
            return " ".join(self._random.choices(WORDS, k=self._random.randint(400, 1500)))
        return " ".join(words[:12] * 8 if kind == "copies" else words)

    async def _send(self, client: AsyncClient, kind: str, text: str, length: int) -> None:
        if kind == "once":
            await client.generate_once(text, max_tokens=length, temperature=0.8)
        elif kind.startswith("http"):
            await asyncio.to_thread(self._over_http, text, length, kind != "http")
        else:
            stop = self._random.choices(WORDS, k=2) if kind == "stops" else None
            leave_after = length // 2 if kind == "leaves" else length
            async with client.generate(text, max_tokens=length, stop=stop, logprobs=2) as stream:
                events = 0
                async for _ in stream:
                    events += 1
                    if kind == "leaves" and events > leave_after:
                        return

    def _over_http(self, text: str, length: int, stream: bool) -> None:
        body = {"model": self._stack.model_name, "prompt": text, "max_tokens": length, "stream": stream}
        url, head = f"http://{self._stack.gateway}/v1/completions", {"Content-Type": "application/json"}
        asked = urllib.request.Request(url, json.dumps(body).encode(), head)
        with urllib.request.urlopen(asked, timeout=600) as answer:
            answer.read()

    async def _sample(self) -> None:
        begun = time.monotonic()
        while True:
            self.samples.seconds.append(time.monotonic() - begun)
            self.samples.requests.append(sum(self.outcomes.values()))
            for name, process in self._processes.items():
                whole = [process, *process.children(recursive=True)]
                held = sum(one.memory_info().rss for one in whole)
                self.samples.resident.setdefault(name, []).append(held)
            await asyncio.sleep(SAMPLE_S)


def announced(log: str) -> int:
    """What the worker said at its start that it would hold: what it held, the largest step, the cache."""
    line = next(line for line in log.splitlines() if "cache_bytes=" in line)
    said = dict(part.split("=", 1) for part in line.split() if "=" in part)
    return sum(int(said[name]) for name in ("held_bytes", "step_bytes", "cache_bytes"))


def judged(found: Mapping[str, Growth], said: int, height: int) -> list[str]:
    """What is not as promised."""
    wrong = [f"{name} grows: {growth.text}" for name, growth in found.items() if growth.grows]
    if height > said * (1 + MOST_OVER):
        wrong.append(f"the worker held {height:,} bytes, {height / said - 1:.1%} more than it announced")
    return wrong


def failed(outcomes: Mapping[str, int]) -> list[str]:
    """Requests that were not answered load nothing, so that memory says nothing."""
    return [f"{count} requests failed, {kind}" for kind, count in outcomes.items() if ": " in kind]


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--settle", type=float, default=0.25, help="share of the time that does not count")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rate", type=float, default=2, help="requests a second")
    parser.add_argument("--burst", type=int, default=256, help="most requests at once")
    parser.add_argument("--output-len", type=int, default=32, help="of the longest answers")
    parser.add_argument("--worker-flag", action="append", default=[], metavar="FLAG", help="beside make up's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write figures and samples here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hundredfold-soak-") as directory:
        flags = {"worker": [*AS_MAKE_UP, *args.worker_flag]}
        stack = ProfiledStack(args.model, Path(directory), 256, None, flags, with_gateway=True)
        with stack.running():
            soak = Soak(stack, args.rate, args.seed, args.output_len)
            asyncio.run(soak.run(args.minutes * 60, args.burst))
        said = announced((Path(directory) / "worker.log").read_text())
    return report(soak, args.minutes * 60, args.settle, said, args.json)


def report(soak: Soak, seconds: float, settle: float, said: int, json_file: Path | None) -> int:
    """Print and write what was found; the exit code."""
    samples = soak.samples
    first = next(i for i, moment in enumerate(samples.seconds) if moment >= settle * seconds)
    found = {name: growth(samples.seconds[first:], held[first:]) for name, held in samples.resident.items()}
    height = max(samples.resident["worker"])
    _table(found, samples.requests[-1] - samples.requests[first], soak.outcomes)
    print(
        f"worker: announced {said / 2**20:.0f} MiB, held at most {height / 2**20:.0f} ({height / said:.1%})"
    )
    wrong = judged(found, said, height) + failed(soak.outcomes)
    print(*(wrong or ["nothing grows, and the worker keeps to what it announced"]), sep="\n")
    if json_file is not None:
        figures = {
            "growth": {name: asdict(one) for name, one in found.items()},
            "outcomes": dict(soak.outcomes),
            "worker_announced": said,
            "worker_height": height,
            "wrong": wrong,
            "samples": asdict(samples),
        }
        json_file.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return int(bool(wrong))


def _table(found: Mapping[str, Growth], requests: int, outcomes: Mapping[str, int]) -> None:
    print(f"{requests} requests while it counted; all:", dict(outcomes))
    for name, one in found.items():
        print(f"{name:>10} {one.text}")


if __name__ == "__main__":
    sys.exit(main())
