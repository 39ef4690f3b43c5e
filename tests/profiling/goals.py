"""Goals of speed that a table of tokens a second does not show: ``make bench-goals``, on a quiet machine.

Each is measured on services as ``make up`` starts them, but a long prompt is held to its goal with
``step_target_ms`` at two decode steps. Figures go to ``--out``, and a summary says what is short of its goal.
``ARGS='--only door --only prefix'`` for some; ``--quick`` only shows that they work.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import goal_steps
from goal_steps import FULL, QUICK, Found, Scale

from hundredfold.bench.alone import AloneError
from hundredfold.bench.ladder.climb import MEASURE_ERRORS, machine
from hundredfold.client import RequestFailed
from hundredfold.models import DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class Goal:
    """One step."""

    measure: Callable[[str, Scale, Callable[[str], None]], Found]
    title: str
    minutes: float
    """What it takes on two AVX2 cores."""


GOALS = {
    "prefix": Goal(goal_steps.prefix, "a shared prefix of 2,000 tokens: first token 10 times sooner", 0.7),
    "long-prompt": Goal(
        goal_steps.long_prompt,
        "4,000 tokens among 32 decodes, by step_target_ms: no step over 3 x the median",
        2.5,
    ),
    "speculation": Goal(
        goal_steps.speculation, "n-gram: 1.8 times where there is much to copy, else 3 % cost", 2
    ),
    "poisson": Goal(goal_steps.poisson, "Poisson at 70 %: p99 to the first token, idle + 4 steps", 4),
    "profile": Goal(goal_steps.profile, "scheduler 1 ms a step, delivery 10 % of the machine, at 256", 1.5),
    "door": Goal(goal_steps.door, "through the door 0.9 of the worker alone, at 64, 128 and 256", 8),
}


def main() -> int:
    """Exit code 1 when one is short of its goal or could not be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=GOALS, help="may be given again")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--quick", action="store_true", help="small loads: no figure is of use")
    parser.add_argument("--out", type=Path, default=Path("build/goals"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in GOALS if not args.only or name in args.only]
    print(f"{machine()}; some {sum(GOALS[name].minutes for name in chosen):.0f} minutes", flush=True)
    founds = {name: _step(name, args.model, QUICK if args.quick else FULL, args.out) for name in chosen}
    print()
    for name, found in founds.items():
        print(f"{'short' if found.short else 'good ':>5} {GOALS[name].title}", *found.short, sep="\n        ")
    return int(any(found.short for found in founds.values()))


def _step(name: str, model: str, scale: Scale, out: Path) -> Found:
    begun = time.monotonic()
    print(f"\n{name}: {GOALS[name].title} (some {GOALS[name].minutes:g} minutes)", flush=True)
    try:
        found = GOALS[name].measure(model, scale, lambda text: print(f"  {text}", flush=True))
    except (*MEASURE_ERRORS, AloneError, RequestFailed, RuntimeError, OSError, ValueError) as error:
        found = Found({}, [f"could not be measured: {type(error).__name__}: {error}"])
    seconds = time.monotonic() - begun
    print(f"  {seconds:.0f} s", *found.short, sep="\n  ", flush=True)
    text = json.dumps({**asdict(found), "seconds": seconds, "machine": machine()}, indent=1)
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    sys.exit(main())
