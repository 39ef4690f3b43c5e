"""The command group: light to import, and honest about a load tool that was the bottleneck itself."""

import subprocess
import sys

from click.testing import CliRunner

from hundredfold.bench.child import Answer
from hundredfold.bench.client import ClientLoad
from hundredfold.bench.serve import judge_client, wanted_processes
from hundredfold.cli.bench import command


def loaded(loop_share: float, lag_s: float = 0.001) -> Answer:
    return Answer(load=ClientLoad(cpu_share=loop_share + 0.1, loop_share=loop_share, loop_lag_p99_s=lag_s))


def test_help_lists_all_commands_and_the_flags_of_serve():
    listed = CliRunner().invoke(command, ["--help"])
    assert listed.exit_code == 0
    for name in ("serve", "offline", "compare", "mock"):
        assert name in listed.output
    flags = CliRunner().invoke(command, ["serve", "--help"]).output
    for flag in (
        "--concurrency", "--num-requests", "--input-len", "--output-len", "--rate", "--arrival", "--address",
        "--preset", "--json", "--warmup", "--seed", "--temperature", "--shared-prefix", "--client-processes",
    ):  # fmt: skip
        assert flag in flags, flag


def test_importing_the_command_brings_neither_torch_nor_tokenizers():
    code = (
        "import sys, hundredfold.cli.bench; print([n for n in ('torch', 'tokenizers') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_busy_client_is_warned_of_with_what_to_do():
    warnings: list[str] = []
    found = judge_client([loaded(0.2), loaded(0.95)], warnings)
    assert found["processes"] == 2
    assert found["busiest_loop_share"] == 0.95
    assert "--client-processes 3" in warnings[0]


def test_late_clock_readings_are_warned_of():
    warnings: list[str] = []
    judge_client([loaded(0.2, lag_s=0.08)], warnings)
    assert "80 ms late" in warnings[0]


def test_a_quiet_client_needs_no_warning():
    warnings: list[str] = []
    judge_client([loaded(0.2)], warnings)
    assert warnings == []


def test_processes_follow_the_measured_share_up_to_the_cores():
    def wanted(share: float, cores: int) -> int:
        return wanted_processes(ClientLoad(share, share, 0.0), cores)

    assert wanted(0.3, 8) == 1
    assert wanted(0.9, 8) == 2
    assert wanted(1.0, 1) == 1
