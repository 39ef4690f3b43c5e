"""From options to services: addresses, flags, threads, and what file and environment have a say in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hundredfold.cli.serve import command
from hundredfold.config import ConfigError
from hundredfold.supervisor.cores import usable_cores
from hundredfold.supervisor.house import (
    LISTEN,
    NEIGHBOUR,
    SERVICES,
    SHARED_SETTINGS,
    House,
    HouseOptions,
    as_assigned,
    parse_extra,
    replica_address,
    thread_variables,
)
from hundredfold.supervisor.restarts import RestartBook, RestartPolicy
from hundredfold_gateway.settings import GatewaySettings
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_tokenizer.settings import TokenizerSettings
from hundredfold_worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hundredfold.supervisor.house.usable_cores", lambda: 2)
    for variable in list(os.environ):
        if variable.startswith(("HUNDREDFOLD_", "OMP_", "RAYON_")):
            monkeypatch.delenv(variable)


def flags(house: House, model: str = "m") -> dict[str, list[str]]:
    return {spec.name: list(spec.command[5:]) for spec in house.specs(model)}


def test_defaults(tmp_path: Path):
    house = House(HouseOptions(), tmp_path)
    specs = house.specs("m")
    assert [spec.name for spec in specs] == list(SERVICES)
    assert specs[0].command[:5] == (
        *(sys.executable, "-m", "hundredfold.supervisor.tether", str(os.getpid()), "hundredfold_gateway"),
    )
    unix = {name: f"unix:{tmp_path / name}.sock" for name in SERVICES}
    assert flags(house) == {
        "gateway": [
            "--listen=127.0.0.1:8000",
            f"--control-listen={unix['gateway']}",
            f"--door={unix['tokenizer']}",
        ],
        "tokenizer": [
            *(
                f"--listen=127.0.0.1:50051,{unix['tokenizer']}",
                "--model=m",
                f"--scheduler={unix['scheduler']}",
            ),
        ],
        "scheduler": [
            *(f"--listen=127.0.0.1:50052,{unix['scheduler']}", "--model=m", f"--worker={unix['worker']}"),
        ],
        "worker": [f"--listen=127.0.0.1:50053,{unix['worker']}", "--model=m", "--num-threads=2"],
    }
    assert [spec.address for spec in specs] == [unix[name] for name in SERVICES]
    assert [spec.stop_s for spec in specs] == [35, 35, 10, 10]


def test_flags_go_where_they_belong(tmp_path: Path):
    options = HouseOptions(
        config=Path("/dev/null"),
        listen={"tokenizer": "0.0.0.0:9,[::1]:9"},
        shared={"max_num_seqs": "-1", "log_level": "debug", "drain_grace_s": "2"},
        extra=parse_extra(["tokenizer.insecure=true", "scheduler.reflection=false", "worker.x_y=a=b c"]),
    )
    made = flags(House(options, tmp_path))
    for name in SERVICES:
        assert made[name][:2] == ["--config", "/dev/null"]
        assert "--log-level=debug" in made[name]
        assert "--drain-grace-s=2" in made[name]
        assert ("--max-num-seqs=-1" in made[name]) is (name == "worker")
    assert made["tokenizer"][2].startswith("--listen=0.0.0.0:9,[::1]:9,unix:")
    assert made["tokenizer"][-1] == "--insecure"
    assert made["scheduler"][-1] == "--no-reflection"
    assert "--x-y=a=b c" in made["worker"]
    assert [spec.stop_s for spec in House(options, tmp_path).specs("m")] == [7, 7, 7, 7]


def test_replicas_share_what_one_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their processes know all of the next service's; cores and memory are divided, ports lie apart."""
    monkeypatch.setattr("hundredfold.supervisor.house.usable_cores", lambda: 8)
    house = House(HouseOptions(replicas={"worker": 3, "tokenizer": 2}), tmp_path)
    made = flags(house)
    unix = {name: f"unix:{tmp_path / name}.sock" for name in made}
    assert " ".join(made) == "gateway tokenizer tokenizer-2 scheduler worker worker-2 worker-3"
    assert f"--door={unix['tokenizer']},{unix['tokenizer-2']}" in made["gateway"]
    assert f"--worker={unix['worker']},{unix['worker-2']},{unix['worker-3']}" in made["scheduler"]
    assert made["tokenizer-2"][0] == f"--listen=127.0.0.1:50061,{unix['tokenizer-2']}"
    assert made["worker-3"][0] == f"--listen=127.0.0.1:50073,{unix['worker-3']}"
    for name in ("worker", "worker-2", "worker-3"):
        assert "--workers-here=3" in made[name]
        assert "--num-threads=2" in made[name]
    assert {spec.name for spec in house.specs("m") if spec.replicated} == {
        name for name in made if name.startswith(("worker", "tokenizer"))
    }
    assert WorkerSettings(workers_here=3).utilization_on("cpu") == pytest.approx(0.5 / 3)
    assert WorkerSettings(workers_here=2, memory_utilization=0.6).utilization_on("cpu") == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("first", "third"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50071"),
        ("[::1]:7", "[::1]:27"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("unix:/run/door", "unix:/run/door-3"),
    ],
)
def test_where_replicas_listen(first: str, third: str):
    assert replica_address(first, 1) == first
    assert replica_address(first, 3) == third


def test_a_service_can_be_left_out(tmp_path: Path):
    house = House(HouseOptions(without=frozenset({"gateway"})), tmp_path)
    assert [spec.name for spec in house.specs("m")] == ["tokenizer", "scheduler", "worker"]
    assert set(house.listen) == {"tokenizer", "scheduler", "worker"}


def test_file_and_environment_are_not_overruled_by_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "c.toml"
    config.write_text('[tokenizer]\nlisten = ["127.0.0.1:7", "127.0.0.1:8"]\n[worker]\nmodel = "from-file"\n')
    monkeypatch.setenv("HUNDREDFOLD_WORKER_LISTEN", "127.0.0.1:9")
    house = House(HouseOptions(config=config), tmp_path)
    assert house.listen["tokenizer"] == "127.0.0.1:7,127.0.0.1:8"
    assert house.listen["worker"] == "127.0.0.1:9"
    assert house.model("default") == "from-file"
    asked = House(
        HouseOptions(config=config, shared={"model": "asked"}, listen={"worker": "127.0.0.1:1"}), tmp_path
    )
    assert asked.model("default") == "asked"
    assert asked.listen["worker"] == "127.0.0.1:1"
    assert House(HouseOptions(), tmp_path).model("default") == "default"


def test_the_workers_threads_are_left_alone_where_someone_said_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def threads(options: HouseOptions) -> list[str]:
        return [
            flag for flag in flags(House(options, tmp_path))["worker"] if flag.startswith("--num-threads")
        ]

    assert threads(HouseOptions()) == ["--num-threads=2"]
    assert threads(HouseOptions(shared={"num_threads": "7"})) == ["--num-threads=7"]
    assert threads(HouseOptions(extra={("worker", "num_threads"): "8"})) == ["--num-threads=8"]
    monkeypatch.setenv("HUNDREDFOLD_WORKER_NUM_THREADS", "9")
    assert threads(HouseOptions()) == []


def test_every_setting_with_a_flag_of_its_own_is_one_of_its_services():
    services = {
        "gateway": GatewaySettings,
        "tokenizer": TokenizerSettings,
        "scheduler": SchedulerSettings,
        "worker": WorkerSettings,
    }
    for setting, names in SHARED_SETTINGS.items():
        for name in names:
            assert setting in services[name].model_fields, (setting, name)
    offered = {option.name for option in command.params}
    assert set(SHARED_SETTINGS) <= offered
    for name, (setting, neighbour) in NEIGHBOUR.items():
        assert setting in services[name].model_fields
        assert neighbour in SERVICES
    for name, address in LISTEN.items():
        assert services[name].model_fields["listen"].default == (address,)


def test_a_refused_flag_is_named_as_it_was_assigned():
    extra = parse_extra(["gateway.nope=1", "worker.no_pe=true", "worker.x=false", "tokenizer.nop=2"])
    lines = ["Usage: hundredfold_gateway [OPTIONS]", "Error: No such option '--nope'."]
    assert as_assigned(lines, extra) == ["--nope is --set gateway.nope"]
    assert as_assigned(["Error: No such option: --no-x"], extra) == ["--no-x is --set worker.x"]
    assert as_assigned(["  --no-pe: ..."], extra) == ["--no-pe is --set worker.no_pe"]
    assert as_assigned(["started"], extra) == []


@pytest.mark.parametrize("content", [None, "not = = toml", b"\xff\xfe"])
def test_an_unreadable_file(tmp_path: Path, content: str | bytes | None):
    config = tmp_path / "c.toml"
    if isinstance(content, str):
        config.write_text(content)
    elif content is not None:
        config.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.toml: "):
        House(HouseOptions(config=config), tmp_path)


@pytest.mark.parametrize(
    "item", ["x", "worker=1", "worker.x", "door.x=1", "worker.a-b=1", ".x=1", "worker.=1"]
)
def test_assignments_that_are_none(item: str):
    with pytest.raises(ConfigError, match=r"--set: '.*' is not SERVICE\.SETTING=VALUE"):
        parse_extra([item])


@pytest.mark.parametrize(("cores", "worker"), [(1, 1), (2, 2), (3, 3), (4, 3), (16, 15)])
def test_thread_pools_fit_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, worker: int):
    monkeypatch.setattr("hundredfold.supervisor.house.usable_cores", lambda: cores)
    assert thread_variables("worker")["OMP_NUM_THREADS"] == str(worker)
    assert thread_variables("tokenizer")["OMP_NUM_THREADS"] == "1"
    assert thread_variables("tokenizer")["RAYON_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in thread_variables("worker")


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_several_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int):
    monkeypatch.setattr("hundredfold.supervisor.house.usable_cores", lambda: cores)
    threads = int(thread_variables("worker", workers)["OMP_NUM_THREADS"])
    assert threads == 1 or threads * workers <= cores


def test_a_quota_limits_the_cores(tmp_path: Path):
    have = usable_cores(tmp_path / "none")
    quota = tmp_path / "cpu.max"
    for text, cores in (
        ("max 100000", have),
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("rubbish", have),
        ("", have),
    ):
        quota.write_text(text)
        assert usable_cores(quota) == cores


def test_restarts_slow_down_and_end_and_are_forgotten():
    book = RestartBook(RestartPolicy(limit=4, window_s=60, first_delay_s=1, max_delay_s=5))
    assert [book.delay_after_crash(now) for now in (0, 1, 2, 3, 4)] == [1, 2, 4, 5, None]
    assert book.delay_after_crash(61.5) == 4
