"""Real processes beside plugins that are broken, denied or double: stopped or listed with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hundredfold import Client
from support.broken_plugins import KV_CACHE, changed
from support.plugin_env import PluginEnvironment
from support.stack import Stack
from support.tiny_model import make_tiny_model

KERNELS, CACHES = "hundredfold.kernels", "hundredfold.kv_cache"


def named(source: str, name: str) -> str:
    """A plugin's source under another name."""
    return source.replace('name = "odd"', f'name = "{name}"')


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> PluginEnvironment:
    """One with a plugin for each way to fail."""
    made = PluginEnvironment.make(tmp_path_factory.mktemp("broken") / "venv")
    made.put("acme-absent", KERNELS, "absent", "import no_such_library\n")
    made.put(
        "acme-future",
        KERNELS,
        "future",
        named(changed(KERNELS, "api_version = 1", "api_version = 7"), "future"),
    )
    lame = changed(KERNELS, "def prepare(self, spec, bias)", "def arrange(self, spec, bias)")
    made.put("acme-lame", KERNELS, "lame", named(lame, "lame"))
    typed = changed(CACHES, "encoding = Encoding.FP32", "encoding = 'fp32'")
    made.put("acme-typed", CACHES, "typed", named(typed, "typed"))
    mute = changed(
        KERNELS, "def refuses(self, spec):\n        return []", "def refuses(self, spec):\n        1 / 0"
    )
    made.put("acme-mute", KERNELS, "mute", named(mute, "mute"))
    bent = changed(KERNELS, "y = linear(x, self.weight)", "y = linear(x, self.weight)[:, 1:]")
    made.put("acme-bent", KERNELS, "bent", named(bent, "bent"))
    return made


def refused_start(python: Path, model: str, directory: Path, **flags: object) -> str:
    """The log of a worker that has to end by itself."""
    stack = Stack(model, directory, {"worker": {"dtype": "fp32", **flags}}, python=python)
    stack.start("worker")
    try:
        assert stack.processes["worker"].wait(timeout=60) == 1, stack.log("worker")
    finally:
        stack.stop()
    return stack.log("worker")


def test_asked_for_and_not_importable(environment: PluginEnvironment, tiny: str, tmp_path: Path) -> None:
    log = refused_start(environment.python, tiny, tmp_path, kernels="absent")
    assert "plugin 'absent' of group hundredfold.kernels, brought by acme-absent 1.0" in log
    assert "ModuleNotFoundError: No module named 'no_such_library'" in log
    assert 'acme_absent_module.py", line 1, in <module>\n    import no_such_library' in log


def test_a_wrong_shape_is_named_before_anybody_is_served(
    environment: PluginEnvironment, tiny: str, tmp_path: Path
) -> None:
    log = refused_start(environment.python, tiny, tmp_path, deny_plugins="mute")
    assert "plugin 'bent' of group hundredfold.kernels, brought by acme-bent 1.0: layer 'lm_head'" in log
    assert "gave torch.float32[1, 511], wanted is torch.float32[1, 512]" in log


def test_the_others_are_listed_and_the_worker_serves(
    environment: PluginEnvironment, tiny: str, tmp_path: Path
) -> None:
    flags = {"worker": {"dtype": "fp32", "deny_plugins": "kernels:bent"}}
    stack = Stack(tiny, tmp_path, flags, python=environment.python)
    stack.start()
    try:
        stack.wait_ready()
        with Client(stack.address) as client:
            answer = client.generate("the quick", max_tokens=4, temperature=0, ignore_eos=True).result()
            worker = next(service for service in client.info() if service.service == "worker")
    finally:
        stack.stop()
    assert len(answer.token_ids) == 4
    plugins = {plugin.name: plugin for plugin in worker.plugins}
    states = {name: plugins[name].state for name in ("absent", "future", "lame", "typed", "mute", "bent")}
    assert states == {
        "absent": "failed",
        "future": "failed",
        "lame": "failed",
        "typed": "failed",
        "mute": "loaded",
        "bent": "denied",
    }
    kernels = next(s for s in worker.runtime.selections if s.subject == "kernels")
    assert kernels.chosen not in states
    reasons = {refusal.name: refusal.reasons[0] for refusal in kernels.refused}
    assert "acme-mute 1.0: refuses() raised ZeroDivisionError" in reasons["mute"]
    assert "plugin left out" in stack.log("worker")


def test_the_command_lists_each_with_its_reason(environment: PluginEnvironment) -> None:
    listed = environment.hundredfold("plugins", "--json")
    assert listed.returncode == 0, listed.stderr
    errors = {
        record["name"]: record["error"]
        for record in json.loads(listed.stdout)
        if record["error"] and record["distribution"].startswith("acme-")
    }
    assert errors.keys() == {"absent", "future", "lame", "typed"}
    assert "Traceback" in errors["absent"]
    assert "is written for plugin API 7, this is plugin API 1" in errors["future"]
    assert "has no method prepare(spec, bias)" in errors["lame"]
    assert "attribute 'encoding' is str, wanted is Encoding" in errors["typed"]


def test_two_of_one_name_stop_every_start(tiny: str, tmp_path: Path) -> None:
    environment = PluginEnvironment.make(tmp_path / "venv")
    environment.put("acme-first", CACHES, "twin", named(KV_CACHE, "twin"))
    environment.put("acme-second", CACHES, "twin", named(KV_CACHE, "twin"), version="3.1")
    log = refused_start(environment.python, tiny, tmp_path / "worker")
    assert "plugin 'twin' of group hundredfold.kv_cache, brought by acme-first 1.0 and acme-second 3.1" in log
    listed = environment.hundredfold("plugins")
    assert listed.returncode == 1
    assert "acme-first 1.0 and acme-second 3.1" in listed.stderr
