"""Nothing in the repository depends on the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

from support.repo import ROOT, files

HERE = re.compile(
    rb"(?<![\w}/])(" + b"|".join(re.escape(f"{place}/".encode()) for place in (ROOT, Path.home())) + b")"
)


def test_no_file_names_this_checkout_or_this_home():
    assert [str(path) for path in files() if HERE.search(path.read_bytes())] == []


def test_such_a_name_is_found():
    assert HERE.search(f"open('{ROOT}/x')".encode())
    assert HERE.search(f" {Path.home()}/.cache".encode())


def test_the_public_contract_is_all_that_proto_holds():
    allowed = {".proto", ".yaml", ".md", ".binpb"}
    assert {p.suffix for p in files() if p.is_relative_to(ROOT / "proto")} <= allowed
