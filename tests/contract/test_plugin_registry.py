"""The registry over real distributions: found, listed, refused, and every fault named with its origin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hundredfold.plugin.registry import PluginError, PluginState, Registry, all_registries
from hundredfold.rpc import plugin_info
from support.distributions import put_distribution

GROUP = "hundredfold.kv_cache"

GOOD = '''
from hundredfold.plugin import API_VERSION, Encoding, ScalePolicy

class Plugin:
    """A cache that is {name}.

    More words.
    """
    name = "{name}"
    api_version = API_VERSION
    encoding = Encoding.BF16
    scales = ScalePolicy.NONE

    def refuses(self, spec):
        return []
'''

KERNEL = """
from hundredfold.plugin import API_VERSION

class Plugin:
    name = "{name}"
    api_version = API_VERSION
    priority = {priority}

    def refuses(self, spec):
        return []

    def prepare(self, spec, bias):
        raise NotImplementedError
"""


class Site:
    """A place on ``sys.path`` into which distributions are put as pip would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(
        self, distribution: str, name: str, source: str, *, version: str = "1.0", group: str = GROUP
    ) -> str:
        """Install a distribution with one module and one entry point; returns the module's name."""
        return put_distribution(self.path, distribution, group, name, source, version=version)

    def good(self, distribution: str, name: str, **how: str) -> str:
        return self.install(distribution, name, GOOD.format(name=name), **how)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        monkeypatch.delitem(sys.modules, module)
    return Site(tmp_path)


def state_of(registry: Registry, name: str) -> PluginState:
    return next(record.state for record in registry.records() if record.name == name)


def test_only_what_is_asked_for_is_imported(site: Site) -> None:
    wanted, other = site.good("acme-wanted", "wanted"), site.good("acme-other", "other")
    registry = Registry(GROUP)
    assert {"wanted", "other"} <= set(registry.names())
    assert wanted not in sys.modules
    plugin = registry.get("wanted")
    assert plugin.name == "wanted"
    assert registry.get("wanted") is plugin
    assert wanted in sys.modules
    assert other not in sys.modules
    assert state_of(registry, "wanted") is PluginState.LOADED
    assert state_of(registry, "other") is PluginState.AVAILABLE


def test_records_say_where_a_plugin_comes_from(site: Site) -> None:
    site.good("acme-cache", "mine", version="2.5")
    registry = Registry(GROUP, allow=["mine"])
    registry.get("mine")
    record = next(r for r in registry.records() if r.name == "mine")
    assert (record.group, record.distribution) == (GROUP, "acme-cache 2.5")
    assert (record.api_version, record.description, record.error) == ("1", "A cache that is mine.", "")
    message = plugin_info(record)
    assert (message.name, message.state, message.distribution) == ("mine", "loaded", "acme-cache 2.5")


def test_denied_and_not_allowed_plugins_stay_untouched(site: Site) -> None:
    one, two = site.good("acme-one", "one"), site.good("acme-two", "two")
    registry = Registry(GROUP, allow=["one", "kv_cache:two"], deny=["hundredfold.kv_cache:one"])
    assert registry.names() == ("two",)
    registry.candidates()
    assert one not in sys.modules
    assert two in sys.modules
    record = next(r for r in registry.records() if r.name == "one")
    assert (record.state, record.error) == (PluginState.DENIED, "it is on the deny list")
    with pytest.raises(PluginError, match=r"'one' of group .* acme-one 1\.0: it is on the deny list"):
        registry.get("one")
    assert next(r for r in registry.records() if r.name == "bf16").error == "it is not on the allow list"


def test_an_entry_for_one_group_leaves_the_others(site: Site) -> None:
    site.good("acme-cache", "same")
    site.install(
        "acme-kernels",
        "same",
        KERNEL.format(name="same", priority=0),
        group="hundredfold.kernels",
    )
    registries = all_registries(deny=["kernels:same"])
    assert "same" in registries[GROUP].names()
    assert "same" not in registries["hundredfold.kernels"].names()


def test_two_distributions_with_one_name_stop_the_start(site: Site) -> None:
    site.good("acme-first", "twin")
    site.good("acme-second", "twin", version="3.1")
    with pytest.raises(
        PluginError, match=r"acme-first 1\.0 and acme-second 3\.1: two plugins have this name"
    ):
        Registry(GROUP)
    assert "twin" not in Registry(GROUP, deny=["twin"]).names()


@pytest.mark.parametrize("spelling", ["twin", "kv_cache:twin", "hundredfold.kv_cache:twin"])
def test_one_of_two_can_be_denied(site: Site, spelling: str) -> None:
    first, second = site.good("acme-first", "twin"), site.good("acme-second", "twin", version="3.1")
    with pytest.raises(PluginError, match="deny_plugins = twin@acme-second"):
        Registry(GROUP)
    registry = Registry(GROUP, deny=[f"{spelling}@acme-second"])
    registry.get("twin")
    assert first in sys.modules
    assert second not in sys.modules
    assert {r.distribution: r.state for r in registry.records() if r.name == "twin"} == {
        "acme-first 1.0": PluginState.LOADED,
        "acme-second 3.1": PluginState.DENIED,
    }


def test_one_distribution_seen_twice_is_one(site: Site, tmp_path: Path) -> None:
    site.good("acme-copy", "copy")
    sys.path.append(str(tmp_path))  # the fixture takes the whole path back
    assert "copy" in Registry(GROUP).names()


def test_asked_for_and_broken_stops_with_the_traceback(site: Site) -> None:
    site.install("acme-broken", "broken", "import nowhere_to_be_found\n")
    registry = Registry(GROUP)
    with pytest.raises(PluginError) as caught:
        registry.get("broken")
    assert caught.value.distribution == "acme-broken 1.0"
    assert "No module named 'nowhere_to_be_found'" in caught.value.reason
    assert 'acme_broken_module.py", line 1' in str(caught.value)
    with pytest.raises(PluginError):
        registry.get("broken")


@pytest.mark.parametrize(
    "source",
    [
        "import nowhere_to_be_found",
        "raise SystemExit(3)",
        "this is no python",
        "Other = 1",
        "class Plugin:\n    def __init__(self, needed): pass",
        "class Plugin:\n    def __init__(self): raise OSError('no device')",
    ],
)
def test_not_asked_for_and_broken_is_recorded_and_left_out(site: Site, source: str) -> None:
    site.install("acme-broken", "broken", source)
    site.good("acme-good", "good")
    registry = Registry(GROUP)
    names = [name for name, _ in registry.candidates()]
    assert "good" in names
    assert "broken" not in names
    record = next(r for r in registry.records() if r.name == "broken")
    assert record.state is PluginState.FAILED
    assert "acme-broken 1.0" in record.error
    assert "Traceback" in record.error


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "api_version = API_VERSION",
            "api_version = 99",
            "is written for plugin API 99, this is plugin API 1",
        ),
        ("api_version = API_VERSION", "", "has no attribute 'api_version' (int)"),
        ("api_version = API_VERSION", "api_version = '1'", "attribute 'api_version' is str, wanted is int"),
        ("encoding = Encoding.BF16", "encoding = 'bf16'", "attribute 'encoding' is str, wanted is Encoding"),
        ('name = "mine"', 'name = "yours"', "calls itself 'yours' but is registered as 'mine'"),
        ("def refuses(self, spec)", "def declines(self, spec)", "has no method refuses(spec)"),
        ("def refuses(self, spec)", "def refuses(self)", "cannot be called as refuses(spec)"),
        ("def refuses(self, spec)", "def refuses(self, spec, more)", "cannot be called as refuses(spec)"),
        ("def refuses(self, spec)", "def refuses(self, other)", "cannot be called as refuses(spec)"),
        ("def refuses(self, spec)", "async def refuses(self, spec)", "is async"),
        ("def refuses(self, spec):\n        return []", "refuses = 3", "'refuses' is no method"),
    ],
)
def test_what_is_missing_is_named(site: Site, old: str, new: str, said: str) -> None:
    source = GOOD.format(name="mine")
    assert old in source
    site.install("acme-odd", "mine", source.replace(old, new))
    with pytest.raises(PluginError) as caught:
        Registry(GROUP).get("mine")
    text = str(caught.value)
    assert said in text
    assert f"plugin 'mine' of group {GROUP}, brought by acme-odd 1.0" in text


def test_more_parameters_with_defaults_are_fine(site: Site) -> None:
    source = GOOD.format(name="mine").replace("(self, spec)", "(self, spec, *, loud=False)")
    site.install("acme-more", "mine", source)
    assert Registry(GROUP).get("mine").name == "mine"


def test_an_instance_is_as_good_as_a_class(site: Site) -> None:
    site.install("acme-instance", "mine", GOOD.format(name="mine") + "\nPlugin = Plugin()\n")
    assert Registry(GROUP).get("mine").name == "mine"


def test_candidates_come_by_priority_then_name(site: Site) -> None:
    for name, priority in (("zz", 7), ("low", -5), ("aa", 7)):
        site.install(
            f"acme-{name}",
            name,
            KERNEL.format(name=name, priority=priority),
            group="hundredfold.kernels",
        )
    registry = Registry("hundredfold.kernels", allow=["zz", "low", "aa"])
    assert [name for name, _ in registry.candidates()] == ["aa", "zz", "low"]


def test_unknown_plugin_and_group_are_named() -> None:
    with pytest.raises(PluginError, match=r"'nope' .* it is not installed; installed: bf16, fp32"):
        Registry(GROUP).get("nope")
    with pytest.raises(ValueError, match=r"plugin group 'hundredfold\.nope' is unknown"):
        Registry("hundredfold.nope")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return ['no device', 'no library']", "no device; no library"),
        ("return []", ""),
        ("return 1 / 0", "unavailable() raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_plugin_may_say_that_this_machine_is_not_for_it(site: Site, body: str, said: str) -> None:
    source = GOOD.format(name="mine") + f"\n    def unavailable(self):\n        {body}\n"
    site.install("acme-mine", "mine", source)
    registry = Registry(GROUP, allow=["mine"])
    registry.get("mine")
    record = next(record for record in registry.records() if record.name == "mine")
    assert (record.state, record.unavailable) == (PluginState.LOADED, said)


def test_damaged_metadata_of_others_does_no_harm(site: Site) -> None:
    site.good("acme-good", "good")
    broken = site.path / "acme_damaged-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-damaged\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_bytes(b"[hundredfold.kv_cache]\nx = \xff\xfe\n")
    (site.path / "acme_empty-1.0.dist-info").mkdir()
    assert "good" in Registry(GROUP).names()


def test_every_plugin_of_ours_meets_its_contract() -> None:
    for registry in all_registries().values():
        registry.candidates()
        ours = [r for r in registry.records() if r.distribution.startswith("hundredfold ")]
        assert [(r.name, r.error) for r in ours if r.state is not PluginState.LOADED] == []
