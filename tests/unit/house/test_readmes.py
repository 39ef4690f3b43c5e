"""What the READMEs point to exists, and the settings that the first one lists are as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.repo import ROOT, hand_written

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
