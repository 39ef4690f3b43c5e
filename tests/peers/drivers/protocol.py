"""How a peer is asked: its driver is started once, says that it is ready, and answers a line for each load.

Lines for us begin with a mark, since libraries print what they like.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time

MARK = "PEER "
SEED = 0


def serve(run, versions):
    """Answer loads with ``run(prompts, output_len)``, which returns the number of output tokens."""
    say({"ready": True, "versions": versions})
    for line in sys.stdin:
        load = json.loads(line)
        drawn = prompts(load["batch"], load["input_len"], load["top_id"])
        try:
            begun = time.perf_counter()
            tokens = run(drawn, load["output_len"])
            seconds = time.perf_counter() - begun
            say({"tokens": tokens, "seconds": seconds, "peak_bytes": peak_bytes()})
        except Exception as error:
            say({"failure": f"{type(error).__name__}: {error}"[:300]})


def prompts(batch, length, top_id):
    """The same random ids for every peer."""
    drawn = random.Random(SEED)
    return [[drawn.randrange(min(1000, top_id // 2), top_id) for _ in range(length)] for _ in range(batch)]


def say(told):
    """Print a line for the one who asks."""
    print(MARK + json.dumps(told), flush=True)


def peak_bytes():
    """Highest resident memory of this process or one of its children that has ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
