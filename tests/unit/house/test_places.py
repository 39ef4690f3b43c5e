"""Nothing in the repository depends on the machine it was written on."""

from __future__ import annotations

from pathlib import Path

from support.repo import ROOT, files


def test_no_file_names_this_checkout_or_this_home():
    here = (f"{ROOT}/".encode(), f"{Path.home()}/".encode())
    guilty = [str(path) for path in files() if any(place in path.read_bytes() for place in here)]
    assert guilty == []


def test_the_public_contract_is_all_that_proto_holds():
    allowed = {".proto", ".yaml", ".md", ".binpb"}
    assert {p.suffix for p in files() if p.is_relative_to(ROOT / "proto")} <= allowed
