"""Puts distributions onto a path as pip would leave them: metadata, one entry point, one module."""

from __future__ import annotations

from pathlib import Path


def put_distribution(
    site: Path, distribution: str, group: str, name: str, source: str, *, version: str = "1.0"
) -> str:
    """Put one there; the plugin is the module's ``Plugin``. Returns the module's name."""
    stem = distribution.replace("-", "_")
    info = site / f"{stem}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {stem}_module:Plugin\n")
    (site / f"{stem}_module.py").write_text(source)
    return f"{stem}_module"
