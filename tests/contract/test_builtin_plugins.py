"""The built-in plugins against the suite that a stranger's plugin is held to, and their own promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf.quants
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from hundredfold.plugin import (
    AttentionBatch,
    AttentionSpec,
    CheckpointInfo,
    DenseWeight,
    Encoding,
    GroupedIntWeight,
    KVCacheSpec,
    LayerRequest,
    LinearSpec,
    Scale,
    StoredTensor,
)
from hundredfold.plugin.dequantize import dequantize, transform_input
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import (
    check_attention,
    check_kernel,
    check_kv_cache,
    check_quantization,
    reference_linear,
)
from hundredfold.plugin.testing.samples import samples
from hundredfold_torch.same_bits import FREE, SameBits, same_bits

CPU = torch.device("cpu")
GGUF = Registry("hundredfold.quantization").get("gguf")
DENSE = Registry("hundredfold.quantization").get("none")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["torch", "onednn", "cpu"])
def test_kernels(name: str) -> None:
    """Every canonical weight is taken; a type may be refused as a whole, with the processor's reason."""
    report = check_kernel(Registry("hundredfold.kernels").get(name))
    in_fp32 = {sample.name for sample in samples(CPU)}
    assert {f"{sample}, float32" for sample in in_fp32} <= set(report.accepted)
    refused = [case for case in report.refused if "int8 inputs" not in case]
    assert all("bfloat16" in case or "in any batch" in case for case in refused)
    assert name != "cpu" or not any("in any batch" in case for case in refused)


@pytest.mark.parametrize("encoding", Encoding)
def test_attention(encoding: Encoding) -> None:
    """Every layer in each type and encoding, and each of these with both block sizes; not all three at once:
    a block's size decides where rows are found, a type and an encoding what is in them.
    """
    backend = Registry("hundredfold.attention").get("torch")
    turned = list(Encoding).index(encoding) % 2
    for dtype, size in zip((torch.float32, torch.bfloat16), (32, 16) if turned else (16, 32), strict=True):
        report = check_attention(backend, dtypes=(dtype,), encodings=(encoding,), block_sizes=(size,))
        assert encoding is Encoding.INT4 or not report.refused


@pytest.mark.parametrize("name", ["bf16", "fp32", "fp8", "int8"])
def test_kv_caches(name: str) -> None:
    assert not check_kv_cache(Registry("hundredfold.kv_cache").get(name)).refused


def stored(name: str, values: np.ndarray, kind: Kind) -> StoredTensor:
    raw = np.frombuffer(gguf.quants.quantize(values, kind).tobytes(), dtype=np.uint8)
    return StoredTensor(name, kind.name, values.shape, raw)


def random_matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_gguf_integers_are_the_librarys_numbers_to_the_bit(kind: Kind) -> None:
    layer = LayerRequest("blk.0.attn_q", (48, 96))
    tensor = stored("blk.0.attn_q.weight", random_matrix(48, 96), kind)
    matrix = torch.from_numpy(gguf.quants.dequantize(tensor.raw.reshape(48, -1), kind))
    info = CheckpointInfo("gguf", None)
    check_quantization(GGUF, info, {tensor.name: tensor}, {layer: matrix}, tolerance=0)
    weight = GGUF.bind(info).load(layer, OneTensor(tensor))
    assert isinstance(weight, GroupedIntWeight)
    assert weight.scales.dtype == torch.float16
    assert torch.equal(dequantize(weight, torch.float32), matrix)


class OneTensor:
    """A source of one tensor, whose dense form is the library's."""

    def __init__(self, tensor: StoredTensor) -> None:
        self.tensor = tensor

    def names(self) -> frozenset[str]:
        return frozenset({self.tensor.name})

    def describe(self, name: str) -> StoredTensor:
        return {self.tensor.name: self.tensor}[name]

    def dense(self, name: str) -> torch.Tensor:
        raise ValueError(f"tensor '{name}' is of type {self.tensor.encoding}, which is not read")


@pytest.mark.parametrize(
    ("rows", "columns", "cut", "said"),
    [
        (48, 96, 1, "has 2879 bytes, Q4_1 of shape (48, 96) takes 2880"),
        (48, 64, 0, "has shape (48, 96), expected is (48, 64)"),
    ],
)
def test_a_damaged_gguf_layer_is_named(rows: int, columns: int, cut: int, said: str) -> None:
    whole = stored("blk.0.attn_q.weight", random_matrix(48, 96), Kind.Q4_1)
    damaged = StoredTensor(whole.name, whole.encoding, whole.shape, whole.raw[cut:])
    with pytest.raises(ValueError, match=r"layer 'blk\.0\.attn_q'") as caught:
        GGUF.bind(CheckpointInfo("gguf", None)).load(
            LayerRequest("blk.0.attn_q", (rows, columns)), OneTensor(damaged)
        )
    assert said in str(caught.value)


def test_an_unreadable_gguf_type_is_named() -> None:
    strange = StoredTensor("x.weight", "Q9_Z", (4, 32), np.zeros(128, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"layer 'x': tensor 'x.weight' of type Q9_Z cannot be read"):
        GGUF.bind(CheckpointInfo("gguf", None)).load(LayerRequest("x", (4, 32)), OneTensor(strange))


def test_unquantized() -> None:
    values = random_matrix(8, 16)
    tensor = StoredTensor("a.weight", "F32", (8, 16), np.frombuffer(values.tobytes(), dtype=np.uint8))
    layers = {LayerRequest("a", (8, 16)): torch.from_numpy(values)}
    check_quantization(DENSE, CheckpointInfo("safetensors", None), {tensor.name: tensor}, layers, tolerance=0)


@pytest.mark.parametrize("sample", list(samples(CPU)), ids=lambda sample: sample.name)
def test_what_weights_mean_agrees_with_the_suites_reference(sample: object) -> None:
    """Two people wrote these down apart."""
    weight = sample.weight  # type: ignore[attr-defined]
    matrix = dequantize(weight, torch.float64).double()
    x = torch.randn(3, matrix.shape[1], generator=torch.Generator().manual_seed(0)).double()
    got = transform_input(x, weight.transform) @ matrix.T
    wanted = reference_linear(weight, x)
    assert float((got - wanted).norm() / wanted.norm()) < 1e-6


@pytest.mark.parametrize("shape", [(576, 576), (960, 576), (576, 1536), (96, 64), (33, 47)])
def test_onednn_in_fp32_gives_a_row_the_same_bits_in_any_batch(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = DenseWeight(torch.randn(shape, generator=generator))
    linear = (
        Registry("hundredfold.kernels")
        .get("onednn")
        .prepare(LinearSpec("layer", weight, CPU, torch.float32), None)
    )
    x = torch.randn(700, shape[1], generator=generator)
    whole = linear(x)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129, 256, 257, 300, 512, 600):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows
    assert torch.equal(linear(x[170:211]), whole[170:211])
    wanted = x.double() @ weight.weight.double().T
    assert float((whole - wanted).norm() / wanted.norm()) < 1e-6


def test_onednn_transforms_long_inputs_once() -> None:
    weight = DenseWeight(torch.randn(24, 32), Scale(torch.full((32,), 3.0)))
    linear = (
        Registry("hundredfold.kernels")
        .get("onednn")
        .prepare(LinearSpec("layer", weight, CPU, torch.float32), torch.randn(24))
    )
    x = torch.randn(900, 32)
    torch.testing.assert_close(linear(x), (x * 3) @ weight.weight.T + linear.bias, atol=1e-4, rtol=1e-4)


MEMORY = """
import torch
from hundredfold.plugin import DenseWeight, LinearSpec
from hundredfold.plugin.registry import Registry

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

torch.set_num_threads(1)
spec = LinearSpec("layer", DenseWeight(torch.randn(192, 128)), torch.device("cpu"), torch.float32)
linear = Registry("hundredfold.kernels").get("onednn").prepare(spec, None)
x = torch.randn(900, 128)
for rows in (1, 64, 256, 900):
    linear(x[:rows])
before = resident()
for rows in range(1, 900):
    linear(x[:rows])
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_onednn_keeps_no_code_for_every_batch_size() -> None:
    """899 numbers of rows: left alone, each leaves half a megabyte of compiled code behind."""
    printed = subprocess.run(
        [sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    assert float(printed) < 60


@pytest.mark.parametrize("count", [1, 5, 60])
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("neighbour", [0, 1, 40, 320])
def test_attention_in_fp32_gives_a_query_the_same_bits_on_every_path(
    count: int, group: int, neighbour: int
) -> None:
    """A prompt in one step against its end as a decode step, a draft and a piece, beside a decoding row."""
    backend = Registry("hundredfold.attention").get("torch")
    heads, head_dim, size, length = 2, 64, 16, 150
    if same_bits(head_dim) is FREE:
        pytest.skip("no way to call this processor's matrix library gives the same bits")
    layer = AttentionSpec(heads * group, heads, head_dim, head_dim**-0.5)
    spec = KVCacheSpec(1, heads, head_dim, size, CPU, torch.float32)
    generator = torch.Generator().manual_seed(group)
    parts = [torch.randn(length, n, head_dim, generator=generator) for n in (heads * group, heads, heads)]
    cache = backend.allocate(spec, Encoding.FP32, 30)
    tables = torch.zeros(2, 20, dtype=torch.int32)
    tables[0, :10], tables[1] = torch.arange(10), torch.arange(10, 30)
    positions = torch.arange(length)
    with torch.inference_mode():
        prompt = AttentionBatch([length], [length], tables[:1], positions, positions)
        whole = backend.plan(prompt, spec, Encoding.FP32)(layer, cache, *parts).clone()
        rows = 2 if neighbour else 1
        last = torch.tensor([neighbour - 1])[: rows - 1]
        batch = AttentionBatch(
            query_lens=[count, 1][:rows],
            seq_lens=[length, neighbour][:rows],
            block_tables=tables[:rows],
            slot_mapping=torch.cat((positions[-count:], 10 * size + last)),
            positions=torch.cat((positions[-count:], last)),
        )
        step = [torch.cat((part[-count:], torch.randn_like(part[: rows - 1]))) for part in parts]
        got = backend.plan(batch, spec, Encoding.FP32)(layer, cache, *step)
    assert torch.equal(got[:count], whole[-count:])


def test_the_way_of_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values gathered and the fused kernel, as on a GPU, held to the suite on this one."""
    from hundredfold_torch import gathered, long_row

    monkeypatch.setattr(gathered, "same_bits_for", lambda *_: SameBits(least_rows=1, bags=False))
    monkeypatch.setattr(long_row, "same_bits_for", lambda *_: FREE)
    backend = Registry("hundredfold.attention").get("torch")
    check_attention(backend, dtypes=(torch.float32,), encodings=(Encoding.FP32,), block_sizes=(16,))


@pytest.mark.parametrize("least", [1, 4, 16])
@pytest.mark.parametrize("bags", [True, False])
def test_any_finding_about_the_matrix_library_computes_right(
    monkeypatch: pytest.MonkeyPatch, least: int, bags: bool
) -> None:
    """What another processor may need is computed here too, spelled out and padded."""
    from hundredfold_torch import gathered, long_row

    for module in (gathered, long_row):
        monkeypatch.setattr(module, "same_bits_for", lambda *_: SameBits(least, bags))
    backend = Registry("hundredfold.attention").get("torch")
    check_attention(backend, dtypes=(torch.float32,), encodings=(Encoding.FP32,), block_sizes=(16,))
