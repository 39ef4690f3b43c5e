"""The suite passes honest plugins and catches each kind of wrong one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    AttentionBatch,
    AttentionSpec,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    Drafter,
    DraftRequest,
    Encoding,
    GroupedIntWeight,
    KVCacheSpec,
    LayerCache,
    LayerRequest,
    Linear,
    LinearSpec,
    Reasons,
    ScalePolicy,
    SpeculationSpec,
    StoredTensor,
    TensorSource,
    Zero,
)
from hundredfold.plugin.testing import (
    NonConformance,
    check_attention,
    check_kernel,
    check_kv_cache,
    check_plugin,
    check_quantization,
    check_speculative,
    check_weight,
)
from support.reference_plugins import SlowAttention, SlowCache, SlowKernels, SlowLinear, SlowPlan

torch.set_num_threads(1)


def test_honest_kernels_pass() -> None:
    report = check_kernel(SlowKernels())
    assert not report.refused
    assert any("offsets" in case for case in report.accepted)
    assert any("after hadamard" in case for case in report.accepted)


def next_float(x: Tensor) -> Tensor:
    """The last bit is another, as where a sum is added up in another order."""
    return torch.nextafter(x, torch.full_like(x, torch.inf))


class NearlyRight(SlowKernels):
    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def refuses(self, spec: LinearSpec) -> Reasons:
        if self.wrong == "refuses with a truth value":
            return True  # type: ignore[return-value]
        return [] if spec.dtype is torch.float32 else ["float32 only"]

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> Linear:
        weight = spec.weight
        if self.wrong == "forgets the transform" and weight.transform is not None:
            spec = replace(spec, weight=replace(weight, transform=None))
        if self.wrong == "forgets zeros" and isinstance(weight, GroupedIntWeight):
            spec = replace(spec, weight=replace(weight, zeros=None))
        return WrongLinear(spec, None if self.wrong == "forgets the bias" else bias, self.wrong)


class WrongLinear(SlowLinear):
    def __init__(self, spec: LinearSpec, bias: Tensor | None, wrong: str) -> None:
        super().__init__(spec, bias)
        self.wrong = wrong

    def __call__(self, x: Tensor) -> Tensor:
        if self.wrong == "scales over the batch":
            x = x / x.abs().max() * x.abs().max()
        y = super().__call__(x)
        if self.wrong == "changes its input":
            x.mul_(2)
        if self.wrong == "hides NaN":
            return y.nan_to_num()
        if self.wrong == "other type":
            return y.double()
        if self.wrong == "splits by the batch" and len(x) > 64:  # more than accuracy is tried with
            return next_float(y)
        if self.wrong == "wrong from 17 rows" and len(x) >= 17:
            return y * 1.01
        return y


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("refuses with a truth value", "wanted is a list of texts"),
        ("forgets the transform", "after permute"),
        ("forgets zeros", "zero points"),
        ("forgets the bias", "bias: relative error"),
        ("scales over the batch", "beside a NaN"),
        ("changes its input", "the input was changed"),
        ("hides NaN", "vanished"),
        ("other type", "type is torch.float64"),
        ("wrong from 17 rows", "17 rows"),
    ],
)
def test_wrong_kernels_are_caught(wrong: str, said: str) -> None:
    with pytest.raises(NonConformance, match=said):
        check_kernel(NearlyRight(wrong), dtypes=[torch.float32])


class Promising(NearlyRight):
    """Says that a row's bits are its own."""

    def varies(self, spec: LinearSpec) -> Reasons:
        return []


def test_a_kernel_that_does_not_keep_its_bits_is_caught() -> None:
    assert any(
        "in any batch" in case for case in check_kernel(Promising(""), dtypes=[torch.float32]).accepted
    )
    with pytest.raises(NonConformance, match="other bits in a batch of 1 than among 256"):
        check_kernel(Promising("splits by the batch"), dtypes=[torch.float32])


def test_honest_attention_passes() -> None:
    report = check_attention(SlowAttention(), block_sizes=[16])
    assert {case.split(",")[0] for case in report.accepted} >= {"grouped queries", "sinks", "window 5"}
    assert all("int8" in case or "fp8" in case or "int4" in case for case in report.refused)


class WrongPlan(SlowPlan):
    wrong = ""

    def __call__(self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.wrong == "keeps nothing":
            assert isinstance(cache, SlowCache)
            k, v = k.clone().zero_(), v.clone().zero_()
        if self.wrong == "reads a whole block":
            size = self.block_size
            lengths = [-(-n // size) * size for n in self.batch.seq_lens]
            assert isinstance(cache, SlowCache)
            padded = replace(self.batch, seq_lens=lengths)
            super().__call__(layer, cache, q, k, v)
            return SlowPlan(padded, self.cache_spec)(layer, cache, q, k, v)
        return super().__call__(layer, cache, q, k, v)

    def __init__(self, batch: AttentionBatch, cache: KVCacheSpec) -> None:
        super().__init__(batch, cache)
        self.cache_spec = cache

    def attend(self, layer: AttentionSpec, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.wrong == "halves prompts" and len(keys) > 1200:
            keys, values = keys.clone(), values.clone()
            keys[:600] = 0
        if self.wrong == "no window":
            layer = replace(layer, sliding_window=None)
        if self.wrong == "window one off" and layer.sliding_window is not None:
            layer = replace(layer, sliding_window=layer.sliding_window + 1)
        if self.wrong == "no softcap":
            layer = replace(layer, softcap=None)
        if self.wrong == "no sinks":
            layer = replace(layer, sinks=None)
        rows, same = len(self.batch.seq_lens), super().attend(layer, q, keys, values)
        if (
            (self.wrong == "splits by the batch" and len(keys) > 1000 and rows == 1)
            or (self.wrong == "sorts by the batch" and rows > 64)
            or (self.wrong == "cuts a long prompt" and len(keys) > len(q) > 100)
        ):
            return next_float(same)
        if self.wrong == "not causal":
            return torch.cat([SlowPlan.attend(self, layer, row[None], keys, values) for row in q])
        return same


class WrongAttention(SlowAttention):
    def __init__(self, wrong: str) -> None:
        self.wrong = wrong
        self.plan_type = type("Plan", (WrongPlan,), {"wrong": wrong})  # type: ignore[assignment]

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        return super().bytes_per_block(cache, encoding) // (2 if self.wrong == "announces half" else 1)

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> LayerCache:
        kept = super().allocate(cache, encoding, num_blocks)
        if self.wrong == "copies keys alone":

            def copy_keys(source: Tensor, destination: Tensor) -> None:
                kept.keys[destination] = kept.keys[source]  # type: ignore[attr-defined]

            kept.copy_blocks = copy_keys  # type: ignore[method-assign]
        return kept


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("keeps nothing", "relative error"),
        ("reads a whole block", "not finite|relative error"),
        ("no window", "window 5"),
        ("window one off", "window 5"),
        ("no softcap", "softcap"),
        ("no sinks", "sinks"),
        ("not causal", "prefill"),
        ("announces half", "bytes_per_block announced"),
        ("copies keys alone", "after copy_blocks"),
    ],
)
def test_wrong_attention_is_caught(wrong: str, said: str) -> None:
    with pytest.raises(NonConformance, match=said):
        check_attention(
            WrongAttention(wrong), dtypes=[torch.float32], encodings=[Encoding.FP32], block_sizes=[16]
        )


class PromisingAttention(WrongAttention):
    """Says that a token's bits are its own, and takes blocks of 32 alone."""

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        return super().refuses(layer, cache, encoding) if cache.block_size == 32 else ["takes blocks of 32"]

    def varies(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        return ["adds sinks where it likes"] if layer.sinks is not None else []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("splits by the batch", "1101 tokens differ beside 7 others"),
        ("sorts by the batch", "differ among 1 sequences"),
        ("cuts a long prompt", "1100 tokens differ when it is cut"),
    ],
)
def test_attention_that_does_not_keep_its_bits_is_caught(wrong: str, said: str) -> None:
    with pytest.raises(NonConformance, match=said):
        check_attention(PromisingAttention(wrong), dtypes=[torch.float32], encodings=[Encoding.FP32])


def test_attention_that_keeps_its_bits_passes() -> None:
    report = check_attention(PromisingAttention(""), dtypes=[torch.float32], encodings=[Encoding.FP32])
    assert all("blocks of 32" in case for case in report.accepted)


class Approximate(WrongAttention):
    """Leaves keys out from 1,200 tokens on, whoever asks."""

    approximation = "half of what is long"

    def told(self, options: Mapping[str, str]) -> Approximate:
        return self


def test_an_approximation_of_prompts_is_caught() -> None:
    with pytest.raises(NonConformance, match="a long prompt, row of 599 tokens"):
        check_attention(Approximate("halves prompts"), dtypes=[torch.float32], block_sizes=[16])


class HalfMethod:
    """Reads layers whose numbers were halved when they were stored."""

    def __init__(self, careful: bool) -> None:
        self.careful = careful

    def covers(self, layer: LayerRequest) -> bool:
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        name = f"{layer.name}.weight"
        if not self.careful:
            return DenseWeight(tensors.dense(name) * 2)
        try:
            matrix = tensors.dense(name)
        except (KeyError, ValueError) as error:
            raise ValueError(f"layer {layer.name}: tensor {name} cannot be read: {error}") from error
        if tuple(matrix.shape) != layer.shape:
            raise ValueError(f"layer {layer.name} is {tuple(matrix.shape)}, wanted is {layer.shape}")
        return DenseWeight(matrix * 2)


class HalfFormat:
    """A format of our own."""

    name = "half"
    api_version = API_VERSION

    def __init__(self, careful: bool = True, greedy: bool = False) -> None:
        self.careful, self.greedy = careful, greedy

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        config = checkpoint.quantization_config or {}
        return [] if self.greedy or config.get("quant_method") == "half" else ["quant_method is not 'half'"]

    def bind(self, checkpoint: CheckpointInfo) -> HalfMethod:
        return HalfMethod(self.careful)


def half_checkpoint() -> tuple[CheckpointInfo, dict[str, StoredTensor], dict[LayerRequest, Tensor]]:
    matrix = torch.randn(6, 32)
    raw = np.frombuffer((matrix / 2).numpy().tobytes(), dtype=np.uint8)
    stored = {"up.weight": StoredTensor("up.weight", "F32", (6, 32), raw)}
    return (
        CheckpointInfo("safetensors", {"quant_method": "half"}),
        stored,
        {LayerRequest("up", (6, 32)): matrix},
    )


def test_honest_format_passes() -> None:
    assert check_quantization(HalfFormat(), *half_checkpoint()).accepted == ["up"]


def test_wrong_formats_are_caught() -> None:
    info, stored, layers = half_checkpoint()
    with pytest.raises(NonConformance, match="accepts CheckpointInfo"):
        check_quantization(HalfFormat(greedy=True), info, stored, layers)
    with pytest.raises(NonConformance, match=r"without up\.weight: KeyError"):
        check_quantization(HalfFormat(careful=False), info, stored, layers)
    with pytest.raises(NonConformance, match="differs by"):
        check_quantization(HalfFormat(), info, stored, {layer: m * 1.1 for layer, m in layers.items()})


def test_weights_that_are_none_are_caught() -> None:
    codes = torch.full((4, 32), 16, dtype=torch.uint8)
    weight = GroupedIntWeight(codes, torch.ones(4, 1), None, 4, 32, Zero.POINT)
    with pytest.raises(NonConformance, match="codes 16 to 16 leave 0 to 15"):
        check_weight(weight, (4, 32))
    with pytest.raises(NonConformance, match="scales are"):
        check_weight(replace(weight, codes=codes // 2, scales=torch.ones(4, 2)), (4, 32))


class Cache:
    """A cache encoding."""

    name = "some"
    api_version = API_VERSION

    def __init__(self, encoding: Encoding, scales: ScalePolicy) -> None:
        self.encoding, self.scales = encoding, scales

    def refuses(self, spec: KVCacheSpec) -> Reasons:
        return []


def test_kv_cache_suite() -> None:
    assert check_kv_cache(Cache(Encoding.BF16, ScalePolicy.NONE)).accepted
    with pytest.raises(NonConformance, match="needs scales"):
        check_kv_cache(Cache(Encoding.INT8, ScalePolicy.NONE))
    with pytest.raises(NonConformance, match="fp32 with scales static"):
        check_kv_cache(Cache(Encoding.FP32, ScalePolicy.STATIC))


class Repeat:
    """Drafts the last token again."""

    name = "repeat"
    api_version = API_VERSION

    def __init__(self, excess: int = 0) -> None:
        self.excess = excess

    def refuses(self, spec: SpeculationSpec) -> Reasons:
        return []

    def bind(self, spec: SpeculationSpec) -> Drafter:
        return self

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [[r.token_ids[-1]] * (r.max_draft_tokens + self.excess) for r in requests]

    def observe(self, slot: int, proposed: int, accepted: int) -> None:
        pass

    def forget(self, slot: int) -> None:
        pass


def test_speculative_suite() -> None:
    assert check_speculative(Repeat()).accepted
    with pytest.raises(NonConformance, match="the limit is 5"):
        check_speculative(Repeat(excess=1))


def test_a_stranger_without_torch_gets_the_first_check() -> None:
    with pytest.raises(NonConformance, match="has no method prepare"):
        check_plugin("hundredfold.kernels", Cache(Encoding.BF16, ScalePolicy.NONE))
