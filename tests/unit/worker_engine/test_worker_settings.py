"""Settings of the worker: defaults by device, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hundredfold.config import ConfigError, load
from hundredfold_worker.settings import WorkerSettings


def test_defaults_depend_on_the_device() -> None:
    settings = WorkerSettings()
    assert settings.listen == ("127.0.0.1:50053",)
    assert (settings.batched_tokens_on("cpu"), settings.batched_tokens_on("cuda")) == (512, 8192)
    assert (settings.utilization_on("cpu"), settings.utilization_on("cuda")) == (0.5, 0.9)
    asked = WorkerSettings(max_num_batched_tokens=77, memory_utilization=0.3)
    assert (asked.batched_tokens_on("cpu"), asked.utilization_on("cuda")) == (77, 0.3)
    assert WorkerSettings(max_num_seqs=2000).batched_tokens_on("cpu") == 2000


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("block_size", "24", "multiple of 16"),
        ("block_size", "8", "greater than or equal to 16"),
        ("block_size", "512", "less than or equal to 256"),
        ("max_num_seqs", "0", "greater than or equal to 1"),
        ("memory_utilization", "1.5", "less than or equal to 1"),
        ("memory_utilization", "nan", "memory_utilization"),
        ("num_kv_blocks", "0", "greater than or equal to 1"),
        ("dtype", "int3", "dtype"),
        ("blok_size", "32", "did you mean '--block-size'"),
    ],
)
def test_bad_values_are_named(flag: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(WorkerSettings, file=None, flags={flag: value})
    assert told in str(refused.value)


@pytest.mark.parametrize("size", [16, 32, 48, 64, 128, 256])
def test_block_sizes(size: int, tmp_path: Path) -> None:
    file = tmp_path / "hundredfold.toml"
    file.write_text(f"[worker]\nblock_size = {size}\n")
    assert load(WorkerSettings, file=file, flags={}).block_size == size


def test_every_setting_is_explained() -> None:
    for name, field in WorkerSettings.model_fields.items():
        assert field.description or name == "listen", name
