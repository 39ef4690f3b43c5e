"""The flash-attn backend without a GPU: layout, metadata, reasons, over a stand-in with the same rules."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from click.testing import CliRunner

from hundredfold.cli.plugins import command
from hundredfold.plugin import AttentionBatch, AttentionSpec, Encoding, KVCacheSpec
from hundredfold.plugin.registry import PluginState, Registry
from hundredfold.plugin.testing import check_attention
from hundredfold_flash import library
from hundredfold_flash.attention import FlashAttention
from support.flash_stand_in import STAND_IN

LAYER = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
CPU = torch.device("cpu")


def spec(**changes: object) -> KVCacheSpec:
    values = {"block_size": 256, "device": CPU, "dtype": torch.bfloat16, "head_dim": 64, **changes}
    return KVCacheSpec(num_layers=1, num_kv_heads=2, **values)  # type: ignore[arg-type]


def layer(**changes: object) -> AttentionSpec:
    values = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "scale": 0.125, **changes}
    return AttentionSpec(**values)  # type: ignore[arg-type]


def test_the_suite_over_the_stand_in():
    """Prefill, chunks, decodes and mixes, window and soft-cap: what it takes is right, others are refused."""
    torch.set_num_threads(1)
    report = check_attention(
        FlashAttention(STAND_IN),
        dtypes=(torch.bfloat16,),
        encodings=(Encoding.BF16,),
        block_sizes=(256,),
    )
    refused = {case.split(",")[0] for case in report.refused}
    assert refused == {"sinks", "window"}  # "window, softcap and sinks"
    assert {"window 33", "softcap", "head_dim 80", "one key head"} <= {
        c.split(",")[0] for c in report.accepted
    }


@pytest.mark.parametrize(
    ("layer_changes", "cache_changes", "encoding", "reason"),
    [
        (
            {},
            {"dtype": torch.float16},
            Encoding.BF16,
            "needs queries of the cache's type, bfloat16, not float16",
        ),
        (
            {},
            {"dtype": torch.float32},
            Encoding.BF16,
            "needs queries of the cache's type, bfloat16, not float32",
        ),
        ({}, {}, Encoding.FP32, "reads bf16 caches, not fp32"),
        ({}, {}, Encoding.INT8, "reads bf16 caches, not int8"),
        ({}, {"block_size": 32}, Encoding.BF16, "not 32: set block_size to 256"),
        ({"head_dim": 264}, {}, Encoding.BF16, "takes head_dim up to 256 in steps of 8, not 264"),
        ({"head_dim": 60}, {}, Encoding.BF16, "takes head_dim up to 256 in steps of 8, not 60"),
        ({"num_heads": 3}, {}, Encoding.BF16, "3 query heads are no multiple of 2 kv heads"),
        ({"sinks": torch.zeros(4)}, {}, Encoding.BF16, "knows no sinks"),
        ({}, {"device": torch.device("meta")}, Encoding.BF16, "runs on cpu, not on meta"),
    ],
)
def test_each_reason_stands_alone(layer_changes: dict, cache_changes: dict, encoding: Encoding, reason: str):
    (found,) = FlashAttention(STAND_IN).refuses(layer(**layer_changes), spec(**cache_changes), encoding)
    assert reason in found


def test_all_reasons_come_at_once():
    reasons = FlashAttention(STAND_IN).refuses(
        layer(head_dim=300, sinks=torch.zeros(4)), spec(block_size=16, dtype=torch.float32), Encoding.INT4
    )
    assert len(reasons) == 5


def test_a_step_of_decodes_reads_the_table_where_it_lies():
    """No copy of queries, no query starts: the path that runs for every token."""
    calls: list[dict] = []

    def with_cache(q, keys, values, **rest):
        calls.append({"q": q, **rest})
        return q

    backend = FlashAttention(library.Library(lambda *_, **__: None, with_cache, "cpu"))
    tables = torch.tensor([[3, 1, 0], [2, 0, 0]], dtype=torch.int32)
    batch = AttentionBatch(
        [1, 1], [300, 7], tables, torch.tensor([256 + 43, 2 * 256 + 6]), torch.tensor([299, 6])
    )
    cache = backend.allocate(spec(), Encoding.BF16, 4)
    q = torch.randn(2, 4, 64, dtype=torch.bfloat16)
    k = torch.randn(2, 2, 64, dtype=torch.bfloat16)
    out = backend.plan(batch, spec(), Encoding.BF16)(layer(sliding_window=9, softcap=2.0), cache, q, k, -k)
    (call,) = calls
    assert call["q"].data_ptr() == q.data_ptr()
    assert call["block_table"].data_ptr() == tables.data_ptr()
    assert call["block_table"].tolist() == [[3, 1], [2, 0]]
    assert call["cache_seqlens"].tolist() == [300, 7]
    assert (call["window_size"], call["softcap"], call["softmax_scale"]) == ((8, 0), 2.0, 0.125)
    assert out.shape == (2, 256)
    assert torch.equal(cache.keys[1, 43], k[0])
    assert torch.equal(cache.values[2, 6], -k[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_is_listed_with_the_reason_and_not_taken():
    registry = Registry("hundredfold.attention")
    plugin = registry.get("flash_attn")
    record = next(record for record in registry.records() if record.name == "flash_attn")
    assert (record.state, record.unavailable) == (PluginState.LOADED, "torch finds no CUDA device")
    reasons = plugin.refuses(LAYER, spec(), Encoding.BF16)
    assert reasons == ["torch finds no CUDA device", "runs on cuda, not on cpu"]
    with pytest.raises(RuntimeError, match="flash_attn cannot run here: torch finds no CUDA device"):
        plugin.plan(AttentionBatch([], [], *[torch.zeros(0)] * 3), spec(), Encoding.BF16)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_command_says_why_not_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    listed = CliRunner().invoke(command, [])
    assert listed.exit_code == 0
    row = next(line for line in listed.output.splitlines() if "flash_attn" in line)
    assert "loaded" in row
    assert "not on this machine: torch finds no CUDA device" in row


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.5.9", "needs flash-attn 2.6 to 2.x, installed is 2.5.9"),
        ("3.0.0b1", "is 3.0.0b1"),
        ("", "an unknown version"),
    ],
)
def test_other_versions_are_refused_by_number(version: str, said: str):
    module = ModuleType("flash_attn")
    module.__version__ = version  # type: ignore[attr-defined]
    found = library.of_module(module)
    assert isinstance(found, str)
    assert said in found


def test_a_fitting_version_is_taken():
    module = ModuleType("flash_attn")
    module.__version__ = "2.8.3.post1"  # type: ignore[attr-defined]
    module.flash_attn_varlen_func = module.flash_attn_with_kvcache = print  # type: ignore[attr-defined]
    assert library.of_module(module) == library.Library(print, print)


def test_a_broken_build_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> ModuleType:
        raise OSError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(library, "import_module", broken)
    assert library.find.__wrapped__() == "flash-attn cannot be imported: OSError: undefined symbol: _ZN3c10"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert library.find.__wrapped__() == "needs compute capability 8.0, the device has 7.5"
