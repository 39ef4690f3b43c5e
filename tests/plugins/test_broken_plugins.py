"""Plugins that fail while a model is loaded: named with their distribution, never a wrong answer later."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hundredfold.models import resolve
from hundredfold.plugin.registry import all_registries
from hundredfold_worker.model import LoadedModel, LoadOptions, ModelLoadError, load_model
from support.broken_plugins import SOURCES, changed
from support.distributions import put_distribution
from support.llama_checkpoints import random_llama

SETTING = {
    "hundredfold.kernels": {"kernels": ("odd",)},
    "hundredfold.quantization": {"quantization": "odd"},
    "hundredfold.kv_cache": {"kv_cache_dtype": "odd"},
    "hundredfold.attention": {"attention": "odd"},
}
"""What asks for the plugin by name."""

REFUSES = {
    "hundredfold.kernels": "def refuses(self, spec):\n        ",
    "hundredfold.quantization": "def refuses(self, checkpoint):\n        ",
    "hundredfold.kv_cache": "def refuses(self, spec):\n        ",
    "hundredfold.attention": "def refuses(self, layer, cache, encoding):\n        ",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    random_llama().save_pretrained(directory)
    return directory


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_odd_module", raising=False)
    return tmp_path


def load(checkpoint: Path, **options: Any) -> LoadedModel:
    """Load with what is installed now."""
    chosen = LoadOptions(dtype="fp32", device="cpu", num_threads=1, **options)
    return load_model(resolve(str(checkpoint)), chosen, all_registries())


def refused(model: LoadedModel, subject: str) -> dict[str, str]:
    """Reasons by plugin that was left out."""
    return {
        refusal.name: " ".join(refusal.reasons)
        for selection in model.runtime.selections
        if selection.subject == subject
        for refusal in selection.refused
    }


@pytest.mark.parametrize("group", list(SETTING))
def test_unchanged_they_are_taken(site: Path, checkpoint: Path, group: str) -> None:
    put_distribution(site, "acme-odd", group, "odd", SOURCES[group])
    model = load(checkpoint, **SETTING[group])
    subject = group.removeprefix("hundredfold.")
    assert "odd" in [s.chosen for s in model.runtime.selections if s.subject == subject]


@pytest.mark.parametrize("group", list(SETTING))
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("return 1 / 0", "refuses() raised ZeroDivisionError: division by zero"),
        ("return 'no'", "refuses() returned 'no', wanted is a list of texts"),
        ("return None", "refuses() returned None, wanted is a list of texts"),
        ("return [3]", "refuses() returned [3], wanted is a list of texts"),
    ],
)
def test_who_cannot_answer_is_left_out_and_fatal_when_asked_for(
    site: Path, checkpoint: Path, group: str, answer: str, said: str
) -> None:
    source = changed(group, REFUSES[group] + "return []", REFUSES[group] + answer)
    put_distribution(site, "acme-odd", group, "odd", source, version="2.3")
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint, **SETTING[group])
    assert f"plugin 'odd' of group {group}, brought by acme-odd 2.3: {said}" in str(caught.value)
    if "raised" in said:
        assert 'acme_odd_module.py", line' in str(caught.value)
    left_out = refused(load(checkpoint), group.removeprefix("hundredfold."))
    # Where the plugins of the house come first and fit, it was not even asked.
    assert said in left_out.get("odd", said)
    if group in ("hundredfold.kernels", "hundredfold.attention"):
        assert said in left_out["odd"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return Layer(", "raise OSError('no device') or Layer(", "prepare() raised OSError: no device"),
        ("return Layer(", "return int(", "prepare() raised "),
        (
            "y = linear(x, self.weight)",
            "y = linear(x, self.weight)[:, :-1]",
            "with 1 rows gave torch.float32[1, ",
        ),
        (
            "y = linear(x, self.weight)",
            "y = linear(x, self.weight)[:1]",
            "with 2 rows gave torch.float32[1, ",
        ),
        ("y = linear(x, self.weight)", "y = linear(x, self.weight).half()", "gave torch.float16["),
        ("y = linear(x, self.weight)", "y = None", "gave NoneType, wanted is a tensor"),
        ("y = linear(x, self.weight)", "y = linear(x, self.weight.T @ x)", "raised RuntimeError: "),
    ],
)
@pytest.mark.parametrize("options", [{}, {"kernels": ("odd",)}])
def test_a_kernel_that_fails_in_its_work(
    site: Path, checkpoint: Path, options: dict[str, Any], old: str, new: str, said: str
) -> None:
    """It said that it can: there is no silent way to another, whether it was asked for by name or not."""
    put_distribution(site, "acme-odd", "hundredfold.kernels", "odd", changed("hundredfold.kernels", old, new))
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint, **options)
    text = str(caught.value)
    assert "plugin 'odd' of group hundredfold.kernels, brought by acme-odd 1.0: " in text
    assert "layer 'lm_head'" in text
    assert said in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return DenseWeight(weight)", "return weight", "gave Tensor, which is no canonical weight"),
        (
            "return DenseWeight(weight)",
            "return DenseWeight(weight.T)",
            "gave a weight of [64, 96], wanted is [96, 64]",
        ),
        (
            "return DenseWeight(weight)",
            "return ChannelInt8Weight(weight.char(), weight[:, 0].float() / 0)",
            "gave scales that are not finite",
        ),
        ("weight = tensors", "weight = None + tensors", "raised TypeError: "),
        ("return True", "return layer.none", "covers() of layer 'model.embed_tokens' raised AttributeError"),
        ("return self", "return self.none", "bind() raised AttributeError"),
    ],
)
def test_a_format_that_fails_in_its_work(site: Path, checkpoint: Path, old: str, new: str, said: str) -> None:
    group = "hundredfold.quantization"
    put_distribution(site, "acme-odd", group, "odd", changed(group, old, new))
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint, quantization="odd")
    assert f"plugin 'odd' of group {group}, brought by acme-odd 1.0: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("q.flatten(1)", "q", "gave torch.float32[2, 4, 16], wanted is torch.float32[2, 64]"),
        ("q.flatten(1)", "q.flatten(1).double()", "gave torch.float64[2, 64]"),
        ("return lambda layer", "return None and (lambda layer", None),
        ("return Cache()", "raise MemoryError('no cache')", None),
    ],
)
def test_a_backend_that_fails_in_its_work(
    site: Path, checkpoint: Path, old: str, new: str, said: str | None
) -> None:
    group = "hundredfold.attention"
    source = changed(group, old, new)
    if "and (" in new:
        source = source.replace("q.flatten(1)", "q.flatten(1))")
        said = "attention over two tokens raised TypeError: 'NoneType' object is not callable"
    put_distribution(site, "acme-odd", group, "odd", source)
    if said is None:  # memory is nobody's fault
        with pytest.raises(MemoryError, match="no cache"):
            load(checkpoint)
        return
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint)
    assert f"plugin 'odd' of group {group}, brought by acme-odd 1.0: " in str(caught.value)
    assert said in str(caught.value)
