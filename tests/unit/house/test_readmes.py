"""What the READMEs point to exists, and the settings that the first one lists are as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hundredfold.config import ServiceSettings
from hundredfold.config.values import describe
from hundredfold_gateway.settings import GatewaySettings
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_tokenizer.settings import TokenizerSettings
from hundredfold_worker.settings import WorkerSettings
from support.repo import ROOT, hand_written

SETTINGS: dict[str, tuple[type[ServiceSettings], ...]] = {
    "tokenizer": (TokenizerSettings,),
    "scheduler": (SchedulerSettings,),
    "worker": (WorkerSettings,),
    "gateway": (GatewaySettings,),
    "all": (TokenizerSettings, SchedulerSettings, WorkerSettings, GatewaySettings),
}
DIFFERENT_EACH = {"listen"}

README = ROOT / "README.md"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FILE_NAME = re.compile(r"`([\w./-]+\.(?:py|sh|yml|proto|binpb))`|`([\w-]+/)`")


@pytest.mark.parametrize("page", hand_written(".md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    dead = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert dead == []


def test_the_life_of_a_request_names_files_that_exist():
    life = README.read_text().split("## The life of a request")[1].split("\n## ")[0]
    named = [file or folder for file, folder in FILE_NAME.findall(life)]
    assert len(named) > 10
    known = [str(path.relative_to(ROOT)) for path in hand_written(".py")]
    missing = [name for name in named if not any(f"/{name}" in f"/{path}" for path in known)]
    assert missing == []


def test_settings_are_as_the_table_says():
    table = README.read_text().split("## Settings")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| ([^|]+) \|", table, re.M)
    assert len(rows) > 20
    for name, services, default in rows:
        for settings in (cls for service in services.split(", ") for cls in SETTINGS[service]):
            assert name in settings.model_fields, f"{settings.__name__} has no {name}"
            if name not in DIFFERENT_EACH:
                found = describe(settings.model_fields[name].get_default())
                assert found == default, f"{settings.__name__}.{name}"
