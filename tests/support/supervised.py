"""Runs the supervisor over stand-ins, as a process to signal and kill. One JSON argument says what."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from hundredfold.supervisor.restarts import RestartPolicy
from hundredfold.supervisor.spec import ChildSpec
from hundredfold.supervisor.supervisor import Supervisor


async def main(told: dict) -> int:
    directory = Path(told["directory"])

    def spec(child: dict) -> ChildSpec:
        tether = (sys.executable, "-m", "hundredfold.supervisor.tether", str(os.getpid()), "stand_in")
        flags = ("--name", child["name"], "--directory", str(directory), *child.get("flags", []))
        return ChildSpec(
            name=child["name"],
            command=(*tether, *flags),
            address=f"unix:{directory / child['name']}.sock",
            environment={"PYTHONPATH": str(Path(__file__).parent)},
            stop_s=child.get("stop_s", 5.0),
            replicated=child.get("replicated", False),
        )

    async def on_ready() -> None:
        print("READY", flush=True)

    supervisor = Supervisor(
        [spec(child) for child in told["children"]],
        sink=lambda name, line: print(f"{name} said {line}", flush=True),
        note=lambda text: print(f"NOTE {text}", flush=True),
        policy=RestartPolicy(limit=told.get("limit", 5), first_delay_s=0.05),
    )
    outcome = await supervisor.run(on_ready)
    print(f"OUTCOME {outcome.message} {json.dumps(outcome.last_lines)}", flush=True)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(json.loads(sys.argv[1]))))
