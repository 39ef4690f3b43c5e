"""One loader: order of sources, everything unknown refused, every problem said at once and by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from click.testing import CliRunner
from pydantic import Field, SecretStr, ValidationError

from hundredfold.config import ConfigError, ServiceSettings, cache_dir, load, service_command


class Demo(ServiceSettings):
    """Run the demo service."""

    config_section: ClassVar[str] = "scheduler"
    listen: tuple[str, ...] = ("127.0.0.1:50052",)
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 256
    """Most sequences at once."""
    model: str = "tiny"
    """The model."""
    share: float = 0.5
    """A share."""
    peers: tuple[str, ...] = ()
    """Where the others are."""
    mode: Literal["fast", "exact"] = "fast"
    """How."""
    quantization: str | None = None
    """A plugin's name; `none` is one."""
    key: SecretStr | None = None
    """What nobody may see."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("HUNDREDFOLD_"):
            monkeypatch.delenv(name)


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "hundredfold.toml"
    file.write_text(text)
    return file


def refusal(**flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Demo, file=None, flags=flags)
    return str(caught.value)


def test_file_is_less_than_environment_is_less_than_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        tmp_path, '[scheduler]\nmax_num_seqs = 1\nmodel = "file"\nshare = 0.1\n[worker]\nmodel = "other"\n'
    )
    monkeypatch.setenv("HUNDREDFOLD_SCHEDULER_MODEL", "environment")
    monkeypatch.setenv("HUNDREDFOLD_SCHEDULER_SHARE", "0.2")
    settings = load(Demo, file=file, flags={"share": "0.3"})
    assert (settings.max_num_seqs, settings.model, settings.share) == (1, "environment", 0.3)


def test_settings_are_frozen_and_direct_building_ignores_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HUNDREDFOLD_SCHEDULER_MODEL", "environment")
    monkeypatch.setenv("MODEL", "environment")
    settings = Demo()
    assert settings.model == "tiny"
    with pytest.raises(ValidationError):
        settings.model = "else"
    with pytest.raises(ValidationError):
        Demo(modle="x")  # type: ignore[call-arg]


def test_empty_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNDREDFOLD_SCHEDULER_MODEL", "")
    assert load(Demo, file=None, flags={}).model == "tiny"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("peers", "a:1, b:2", ("a:1", "b:2")),
        ("listen", "127.0.0.1:1,unix:/tmp/x.sock", ("127.0.0.1:1", "unix:/tmp/x.sock")),
        ("metrics_port", "none", None),
        ("metrics_port", "9464", 9464),
        ("quantization", "none", "none"),
        ("reflection", "true", True),
        ("mode", "exact", "exact"),
    ],
)
def test_text_becomes_values(name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(load(Demo, file=None, flags={name: text}), name) == value
    monkeypatch.setenv(f"HUNDREDFOLD_SCHEDULER_{name.upper()}", text)
    assert getattr(load(Demo, file=None, flags={}), name) == value


def test_every_problem_is_named_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        tmp_path, "[scheduler]\nmax_num_seq = 3\nshare = true\n[schedular]\n[worker]\nwhatever = 1\n"
    )
    monkeypatch.setenv("HUNDREDFOLD_SCHEDULER_MAX_NUM_SEQS", "5000")
    monkeypatch.setenv("HUNDREDFOLD_SCHEDULER_SHRE", "x")
    with pytest.raises(ConfigError) as caught:
        load(Demo, file=file, flags={"mode": "slow", "peer": "a"})
    text = str(caught.value)
    assert f"{file}: section [schedular] is unknown (did you mean 'scheduler'?)" in text
    assert f"[scheduler] in {file}: key 'max_num_seq' is unknown (did you mean 'max_num_seqs'?)" in text
    assert f"[scheduler] in {file}: share = true: is a truth value where a number is wanted" in text
    assert (
        "HUNDREDFOLD_SCHEDULER_SHRE: is an unknown variable (did you mean 'HUNDREDFOLD_SCHEDULER_SHARE'?)"
        in text
    )
    assert (
        "HUNDREDFOLD_SCHEDULER_MAX_NUM_SEQS: max_num_seqs = 5000: "
        "input should be less than or equal to 4096" in text
    )
    assert "--mode: mode = slow: input should be 'fast' or 'exact'" in text
    assert "--peer: is unknown (did you mean '--peers'?)" in text
    assert len(caught.value.problems) == 7


def test_variables_that_kubernetes_injects_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_50052_TCP_ADDR"):
        monkeypatch.setenv(f"HUNDREDFOLD_SCHEDULER_{name}", "10.0.0.1")
    assert load(Demo, file=None, flags={}) == Demo()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_are_finite(value: str) -> None:
    assert "share" in refusal(share=value)


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:50052", "can be reached by other machines"),
        ("[::]:50052", "can be reached by other machines"),
        ("example.org:1", "can be reached by other machines"),
        ("127.0.0.1", "is not HOST:PORT"),
        ("127.0.0.1:66000", "a port is a number from 0 to 65535"),
        ("::1:50052", "needs brackets"),
        ("unix:relative.sock", "needs an absolute path"),
        ("unix:/" + "x" * 200, "over 107 bytes"),
        ("127.0.0.1:1,127.0.0.1:1", "twice"),
        ("", "names no address"),
    ],
)
def test_bad_addresses_are_refused(listen: str, said: str) -> None:
    assert said in refusal(listen=listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1"])
def test_insecure_opens_them(listen: str) -> None:
    assert load(Demo, file=None, flags={"listen": listen, "insecure": True}).listen == (listen,)


@pytest.mark.parametrize("listen", ["localhost:1", "[::1]:1", "127.1.2.3:1", "unix:/run/x.sock"])
def test_addresses_of_this_machine_are_fine(listen: str) -> None:
    assert load(Demo, file=None, flags={"listen": listen}).listen == (listen,)


def test_secrets_are_masked_everywhere() -> None:
    settings = load(Demo, file=None, flags={"key": "hush"})
    assert settings.key is not None
    assert settings.key.get_secret_value() == "hush"
    assert "hush" not in repr(settings) + str(settings) + str(settings.in_force())


def test_long_values_are_cut_in_messages() -> None:
    assert len(refusal(max_num_seqs="9" * 100_000)) < 1000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[scheduler", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"[scheduler]\n" + b"a = " + b"[" * 5000, "is not TOML"),
        (b"#" * 2_000_000, "is over"),
        (b"scheduler = 3", "write [scheduler]"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        load(Demo, file=file, flags={})
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read: No such file"):
        load(Demo, file=tmp_path / "gone.toml", flags={})


class Required(ServiceSettings):
    """Needs a model."""

    config_section: ClassVar[str] = "worker"
    model: str
    """The model."""


def test_missing_values_say_how_to_set_them() -> None:
    with pytest.raises(ConfigError) as caught:
        load(Required, file=None, flags={"listen": "127.0.0.1:1"})
    assert "set --model, HUNDREDFOLD_WORKER_MODEL or [worker] model" in str(caught.value)


def test_the_command_has_a_documented_flag_per_field() -> None:
    command = service_command(Demo, lambda settings: 0)
    text = CliRunner().invoke(command, ["--help"], terminal_width=200).output
    assert "Run the demo service." in text
    assert "--max-num-seqs INTEGER" in text
    assert "Most sequences at once. [default: 256]" in text
    assert "--reflection / --no-reflection" in text
    assert "[fast|exact]" in text
    assert "Addresses to listen on" in text  # from the field that Demo overrides
    for name in Demo.model_fields:
        assert f"--{name.replace('_', '-')}" in text


def test_the_command_runs_with_what_it_was_told(tmp_path: Path) -> None:
    seen: list[Demo] = []

    def run(settings: Demo) -> int:
        seen.append(settings)
        return 7

    file = write(tmp_path, '[scheduler]\nmodel = "m"\n')
    arguments = ["--config", str(file), "--peers", "a:1,b:2", "--reflection"]
    assert CliRunner().invoke(service_command(Demo, run), arguments).exit_code == 7
    assert (seen[0].model, seen[0].peers, seen[0].reflection) == ("m", ("a:1", "b:2"), True)


def test_the_command_refuses_in_words_with_exit_code_2() -> None:
    command = service_command(Demo, lambda settings: 0)
    result = CliRunner().invoke(command, ["--max-num-seqs", "0"])
    assert result.exit_code == 2
    assert "max_num_seqs = 0: input should be greater than or equal to 1" in result.output
    assert "Traceback" not in result.output
    unknown = CliRunner().invoke(command, ["--max-num-seq", "3"])
    assert unknown.exit_code == 2
    assert "--max-num-seqs" in unknown.output


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "hundredfold"
    monkeypatch.setenv("HUNDREDFOLD_CACHE_DIR", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_reading_settings_imports_neither_grpc_nor_torch() -> None:
    code = (
        "import sys, hundredfold.config; print([m for m in ('grpc', 'torch', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
