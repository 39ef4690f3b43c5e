"""Every installed attention backend with every encoding: equal to the reference, or refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hundredfold.plugin import AttentionPlugin, AttentionSpec, Encoding, KVCacheSpec, ScalePolicy
from hundredfold.plugin.kv_codes import decode, encode
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_attention

CPU = torch.device("cpu")
LAYER = AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
CACHE = KVCacheSpec(30, 3, 64, 16, CPU, torch.float32)
SCALED = (Encoding.INT8, Encoding.FP8, Encoding.FP8_E5M2)
LIMITS = {Encoding.INT8: 127, Encoding.FP8: 448, Encoding.FP8_E5M2: 57344}
STEPS = {Encoding.INT8: 0, Encoding.FP8: 2**-4, Encoding.FP8_E5M2: 2**-3}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def installed(kind: str) -> list[str]:
    return [name for name, _ in Registry(f"hundredfold.{kind}").candidates()]


def backend(name: str) -> AttentionPlugin:
    plugin: AttentionPlugin = Registry("hundredfold.attention").get(name)
    return plugin


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("name", installed("attention"))
def test_equal_or_refused(name: str, encoding: Encoding) -> None:
    reasons = backend(name).refuses(LAYER, CACHE, encoding)
    if reasons:
        assert all(reason.strip() for reason in reasons)
        return
    report = check_attention(backend(name), encodings=(encoding,), block_sizes=(16,))
    assert "grouped queries, bfloat16, " + f"{encoding.value} cache, blocks of 16" in report.accepted


@pytest.mark.parametrize("name", installed("kv_cache"))
def test_every_cache_has_a_backend(name: str) -> None:
    plugin = Registry("hundredfold.kv_cache").get(name)
    takers = [
        who for who in installed("attention") if not backend(who).refuses(LAYER, CACHE, plugin.encoding)
    ]
    assert {"torch", "cpu"} <= set(takers)
    assert (plugin.scales is ScalePolicy.PER_TOKEN_HEAD) == (plugin.encoding in SCALED)
    assert (plugin.scales is ScalePolicy.PER_TOKEN_GROUP) == (plugin.encoding is Encoding.INT4)


@pytest.mark.parametrize("name", ["torch", "cpu"])
@pytest.mark.parametrize("encoding", [*SCALED, Encoding.INT4])
def test_more_sequences_fit(name: str, encoding: Encoding) -> None:
    """At least 1.8 times as many as with bf16, of four bits three times."""
    need = {
        kind: backend(name).bytes_per_block(CACHE, kind) for kind in (Encoding.FP32, Encoding.BF16, encoding)
    }
    four = encoding is Encoding.INT4
    assert need[encoding] == 16 * 3 * 2 * (32 + 2 * 4 if four else 64 + 4)
    assert need[Encoding.BF16] / need[encoding] > (3.19 if four else 1.88)
    assert need[Encoding.FP32] / need[encoding] > (6.39 if four else 3.76)


@pytest.mark.parametrize("encoding", SCALED)
def test_what_codes_stand_for(encoding: Encoding) -> None:
    x = torch.tensor(
        [
            [1.0, -2.0, 0.5, 0.0],
            [0.0] * 4,
            [1e-35, 0, 0, 0],
            [3.0, float("nan"), 1, 1],
            [1, 1, 1, -float("inf")],
        ]
    )
    codes, scales = encode(encoding, x)
    limit = LIMITS[encoding]
    assert codes.dtype.itemsize == 1
    assert scales[0] == torch.tensor(2.0) / limit
    assert scales[1] == scales[2] == 0
    assert scales[3:].isnan().all()
    assert (codes[1:] == 0).all()
    back = decode(encoding, codes, scales, 4)
    torch.testing.assert_close(back[0], x[0], rtol=STEPS[encoding], atol=1 / 127)
    assert (back[1:3] == 0).all()
    assert back[3:].isnan().all()
    odd = replace(LAYER, head_dim=5)
    assert decode(encoding, *encode(encoding, torch.randn(7, 3, odd.head_dim)), 5).shape == (7, 3, 5)


def test_what_four_bits_stand_for() -> None:
    """Bands of 32 columns: from their smallest number on, in fifteenths of what they range over."""
    x = torch.zeros(6, 40)
    x[0] = torch.arange(40) / 8 - 3
    x[1] = 7.3
    x[2, 5], x[3, 35], x[4, 0], x[4, 1] = float("nan"), -float("inf"), 1e30, -1e30
    x[5, :32], x[5, 32:] = 1e-35, -1e-9
    codes, scales = encode(Encoding.INT4, x)
    assert (codes.shape, codes.dtype, scales.shape, scales.dtype) == (
        (6, 20),
        torch.uint8,
        (6, 2, 2),
        torch.half,
    )
    back = decode(Encoding.INT4, codes, scales, 40)
    # half a step each way, and what rounding scale and least to half precision adds
    torch.testing.assert_close(back[0], x[0], rtol=0, atol=31 / 8 / 30 * 1.01)
    assert back[0, 0] == -3  # the smallest is exact
    torch.testing.assert_close(back[1], x[1], rtol=2**-11, atol=0)
    assert back[2, :32].isnan().all()
    assert (back[2, 32:] == 0).all()
    assert back[3, 32:].isnan().all()
    assert (back[3, :32] == 0).all()
    assert back[4].isfinite().all()
    assert (back[4, 0] > 60000, back[4, 1]) == (True, -65504)
    assert back[5].abs().max() < 1e-6
