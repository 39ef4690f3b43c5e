"""What the Compose files and the Dockerfile promise, read from the files; `make docker-test` sees it run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from hundredfold.config import ServiceSettings
from support.repo import ROOT

WITH_MODEL = ("tokenizer", "scheduler", "worker")
SERVICES = ("gateway", *WITH_MODEL)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def test_only_the_doors_are_published_and_only_on_loopback(compose: dict[str, Any]):
    published = {
        name: service["ports"] for name, service in compose["services"].items() if "ports" in service
    }
    assert sorted(published) == ["gateway", "tokenizer"]
    assert {port.split(":")[0] for ports in published.values() for port in ports} == {"127.0.0.1"}


def test_scheduler_and_worker_are_on_a_network_that_leads_nowhere(compose: dict[str, Any]):
    assert compose["networks"]["inside"]["internal"] is True
    for name in ("scheduler", "worker"):
        assert compose["services"][name]["networks"] == ["inside"]


@pytest.mark.parametrize("name", ["model", *SERVICES])
def test_containers_have_no_rights(compose: dict[str, Any], name: str):
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "${HUNDREDFOLD_USER:-10001:0}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_drain_fits_into_the_grace_period(compose: dict[str, Any], name: str):
    grace_s = float(compose["services"][name]["stop_grace_period"].removesuffix("s"))
    assert grace_s > ServiceSettings.model_fields["drain_grace_s"].default


@pytest.mark.parametrize("name", WITH_MODEL)
def test_services_read_models_and_only_the_pull_writes_them(compose: dict[str, Any], name: str):
    assert compose["services"][name]["volumes"] == ["models:/cache:ro"]
    assert compose["services"]["model"]["volumes"] == ["models:/cache"]


def test_the_gateway_needs_no_model_and_reaches_the_door_alone(compose: dict[str, Any]):
    gateway = compose["services"]["gateway"]
    assert "volumes" not in gateway
    assert gateway["networks"] == ["outside"]


def test_gpu_settings_are_in_their_own_file_only(compose: dict[str, Any]):
    assert "nvidia" not in (ROOT / "docker-compose.yml").read_text()
    gpu = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.gpu.yml").read_text())
    assert list(gpu["services"]) == ["worker"]


def test_the_base_image_can_be_replaced_and_the_syntax_is_plain(dockerfile: str):
    instructions = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    assert instructions[0] == "ARG PYTHON_IMAGE=python:3.12-slim"
    assert re.search(r"^# *syntax *=", dockerfile, re.M) is None
    assert "<<" not in dockerfile
    assert "--link" not in dockerfile


@pytest.mark.parametrize(
    ("name", "port"), [("gateway", 50050), ("tokenizer", 50051), ("scheduler", 50052), ("worker", 50053)]
)
def test_every_role_has_a_health_check_and_leaves_time_to_load(dockerfile: str, name: str, port: int):
    stage = dockerfile.split(f" AS {name}\n")[1].split("\nFROM ")[0]
    assert f'CMD ["python3", "-m", "hundredfold.probe", "127.0.0.1:{port}"]' in stage
    assert "--start-period=10m" in stage


def test_nothing_runs_as_root(dockerfile: str):
    for stage in ("base", "gateway", "worker"):
        assert "\nUSER 10001:0\n" in dockerfile.split(f" AS {stage}\n")[1].split("\nFROM ")[0]
