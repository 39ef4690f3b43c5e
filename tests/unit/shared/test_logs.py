"""Logs: one line an event, whatever the values hold, and never what a user wrote."""

from __future__ import annotations

import io
import json
import logging
from typing import ClassVar

import pytest

from hundredfold.config import ServiceSettings
from hundredfold.telemetry import configure_logging, get_logger

log = get_logger("hundredfold.test")


class Demo(ServiceSettings):
    """Demo."""

    config_section: ClassVar[str] = "worker"
    listen: tuple[str, ...] = ("127.0.0.1:1",)


def captured(log_format: str, log_level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(Demo.model_validate({"log_format": log_format, "log_level": log_level}), stream)
    return stream


def test_text_is_one_line_an_event() -> None:
    stream = captured("text")
    log.info("worker lost", worker="a b", requests=3, took_s=0.123456789, note="x\ny\x1b[31m")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.endswith(
        r'hundredfold.test: worker lost worker="a b" requests=3 took_s=0.123457 note="x\ny\u001b[31m"' + "\n"
    )


def test_json_is_one_object_an_event() -> None:
    stream = captured("json")
    log.warning("a\nb", count=3, ok=True, nothing=None, event="mine", thing={"x": 1})
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["event"] == "a\nb"
    assert (line["count"], line["ok"], line["nothing"], line["event_"]) == (3, True, None, "mine")
    assert (line["service"], line["level"], line["thing"]) == ("worker", "warning", "{'x': 1}")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_a_user_wrote_is_not_logged(log_format: str) -> None:
    stream = captured(log_format)
    log.info("failed", prompt="secret", text="secret", messages=["secret"], output_ids=[7777], stop="secret")
    assert "secret" not in stream.getvalue()
    assert "7777" not in stream.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_long_values_are_cut(log_format: str) -> None:
    stream = captured(log_format)
    log.info("big", value="x" * 1_000_000)
    assert len(stream.getvalue()) < 1000
    assert "1000000 characters" in stream.getvalue()


def test_levels_hold_for_ours_and_libraries_only_warn() -> None:
    stream = captured("text", "debug")
    log.debug("detail")
    logging.getLogger("somebody.else").info("chatter")
    assert "detail" in stream.getvalue()
    assert "chatter" not in stream.getvalue()
    stream = captured("text", "error")
    log.warning("quiet")
    assert stream.getvalue() == ""


def test_exceptions_bring_their_traceback() -> None:
    stream = captured("json")
    try:
        raise KeyError("k")
    except KeyError:
        log.exception("call failed", error_id="ab")
    line = json.loads(stream.getvalue())
    assert line["error_id"] == "ab"
    assert "KeyError: 'k'" in line["traceback"]
