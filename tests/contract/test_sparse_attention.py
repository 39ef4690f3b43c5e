"""The sparse attention: what it chooses, against torch; and a token's bits its own sequence's alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hundredfold.plugin import AttentionBatch, AttentionSpec, Encoding, KVCacheSpec
from hundredfold.plugin.kv_codes import decode, encode
from hundredfold.plugin.testing import check_attention
from hundredfold_cpu.attention import CpuAttention
from hundredfold_cpu.choice import BlockChoice
from hundredfold_cpu.library import Variant, variants
from hundredfold_cpu.sparse import SparseAttention
from support.poison import poison

CPU = torch.device("cpu")
SIZE, NUM_BLOCKS = 16, 96
CODED = (Encoding.INT8, Encoding.FP8, Encoding.FP8_E5M2, Encoding.INT4)
CHOICE = BlockChoice(keep=0.75, least=80, first=16, recent=16)
LAYER = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=24, scale=0.3)
PROMPT, LENGTH = 150, 200


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_suite() -> None:
    """Its sequences are short: all exact."""
    assert check_attention(SparseAttention(), block_sizes=(16,)).accepted


class Rows:
    """One sequence's queries, keys and values, and a cache whose blocks held something else before."""

    def __init__(
        self,
        layer: AttentionSpec = LAYER,
        encoding: Encoding = Encoding.FP32,
        choice: BlockChoice = CHOICE,
        variant: Variant | None = None,
    ) -> None:
        self.backend = SparseAttention(variant, choice)
        self.layer, self.encoding = layer, encoding
        self.spec = KVCacheSpec(1, layer.num_kv_heads, layer.head_dim, SIZE, CPU, torch.float32)
        self.random = torch.Generator().manual_seed(7)
        self.q, self.k, self.v = self.draw(LENGTH)
        self.table = torch.randperm(NUM_BLOCKS, generator=self.random)[: -(-LENGTH // SIZE)].to(torch.int32)
        self.cache = self.backend.allocate(self.spec, encoding, NUM_BLOCKS)
        poison(self.cache)

    def draw(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        heads = (self.layer.num_heads, self.layer.num_kv_heads, self.layer.num_kv_heads)
        q, k, v = (torch.randn(tokens, n, self.layer.head_dim, generator=self.random) for n in heads)
        return q, k, v

    def run(self, counts: list[int], done: int = 0, backend: CpuAttention | None = None) -> Tensor:
        """Outputs of the tokens from ``done`` on, so many at a time."""
        found = []
        for count in counts:
            positions = torch.arange(done, done + count)
            slots = self.table.long()[positions // SIZE] * SIZE + positions % SIZE
            batch = AttentionBatch(
                [count], [done + count], self.table[None], slots, positions, prompt_lens=[PROMPT]
            )
            planned = (backend or self.backend).plan(batch, self.spec, self.encoding)
            own = (part[done : done + count] for part in (self.q, self.k, self.v))
            found.append(planned(self.layer, self.cache, *own))
            done += count
        return torch.cat(found)

    def stored(self, x: Tensor) -> Tensor:
        if self.encoding in CODED:
            return decode(self.encoding, *encode(self.encoding, x), x.shape[-1])
        return x.to(torch.bfloat16).float() if self.encoding is Encoding.BF16 else x

    def merits(self, position: int, kv: int) -> Tensor:
        """What each block gets of the weight of the heads that share ``kv``, guessed."""
        codes, scales = rounded(self.k[: position + 1, kv], 7)
        group = self.layer.num_heads // self.layer.num_kv_heads
        queries, factors = rounded(self.q[position, kv * group : kv * group + group] * self.layer.scale, 63)
        scores = (queries @ codes.T).double() * factors.double() * scales.double().T
        if self.layer.softcap is not None:
            scores = self.layer.softcap * (scores / self.layer.softcap).tanh()
        if self.layer.sinks is not None:
            sinks = self.layer.sinks[kv * group : kv * group + group, None].double()
            scores = torch.cat((scores, sinks), 1)
        weights = scores.softmax(1)[:, : position + 1].sum(0)
        blocks = position // SIZE + 1
        return functional.pad(weights, (0, blocks * SIZE - position - 1)).view(blocks, SIZE).sum(1)

    def wanted(self, position: int, slack: float) -> Tensor:
        """The choice and its attention, spelled out; what may be left out is more by the share ``slack``."""
        keys, values = (
            self.stored(self.k[: position + 1]).double(),
            self.stored(self.v[: position + 1]).double(),
        )
        group, own = self.layer.num_heads // self.layer.num_kv_heads, position // SIZE
        outs = []
        for kv in range(self.layer.num_kv_heads):
            merits = self.merits(position, kv)
            merits[0] = merits[own - 1] = merits[own] = 0
            order = merits.argsort(descending=True)
            left_out = merits.sum() - merits[order].cumsum(0)
            count = int((left_out > group * (1 - CHOICE.keep) * (1 + slack)).sum()) + 1
            order = torch.cat((torch.tensor([0, own - 1, own]), order[: max(count, 2)]))
            taken = sorted(set(order.tolist()))
            seen = torch.cat([torch.arange(b * SIZE, min(b * SIZE + SIZE, position + 1)) for b in taken])
            for head in range(kv * group, kv * group + group):
                scores = keys[seen, kv] @ self.q[position, head].double() * self.layer.scale
                if self.layer.softcap is not None:
                    scores = self.layer.softcap * (scores / self.layer.softcap).tanh()
                whole = scores.logsumexp(0)
                if self.layer.sinks is not None:
                    whole = torch.logaddexp(whole, self.layer.sinks[head].double())
                outs.append((scores - whole).exp() @ values[seen, kv])
        return torch.stack(outs)

    def check(self, out: Tensor, position: int) -> None:
        """``out`` is what is wanted; where a block more or less is near, of each head either of both."""
        less, more = (self.wanted(position, slack) for slack in (1e-3, -1e-3))
        found = out.double().view_as(less)
        error = torch.minimum((found - less).abs().amax(1), (found - more).abs().amax(1))
        assert error.max() < 1e-3, position


def rounded(x: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Whole numbers up to ``limit`` for each row of ``x``, and what they are multiples of."""
    top = x.abs().amax(-1, keepdim=True)
    return (x * (limit / top)).round(), top / limit


def sketches(rows: Rows) -> tuple[Tensor, Tensor]:
    """Codes [tokens, kv heads, columns] and scales [tokens, kv heads] as they lie beside the cache."""
    kv_heads, width = rows.layer.num_kv_heads, -(-rows.layer.head_dim // 16) * 16
    assert rows.cache.sketches is not None
    mine = rows.cache.sketches.view(NUM_BLOCKS, kv_heads, -1)[rows.table.long()]
    scales = mine[..., : 4 * SIZE].contiguous().view(torch.float32)
    both = mine[..., 4 * SIZE :].view(len(mine), kv_heads, SIZE // 16, width // 8, 16, 4)
    codes = torch.stack((both & 15, both >> 4), -2).permute(0, 2, 4, 1, 3, 5, 6).to(torch.int32) - 8
    tokens = len(mine) * SIZE
    return codes.reshape(tokens, kv_heads, width)[:LENGTH], scales.transpose(1, 2).reshape(tokens, kv_heads)[
        :LENGTH
    ]


SHAPES = [
    LAYER,
    replace(LAYER, softcap=0.5),
    AttentionSpec(num_heads=3, num_kv_heads=3, head_dim=64, scale=0.2),
    AttentionSpec(num_heads=7, num_kv_heads=1, head_dim=136, scale=0.1, sinks=torch.linspace(0, 4, 7)),
]


@pytest.mark.parametrize("layer", SHAPES, ids=lambda layer: f"{layer.num_heads}x{layer.head_dim}")
def test_what_is_chosen(layer: AttentionSpec) -> None:
    rows = Rows(layer)
    exact = CpuAttention()
    out = rows.run([LENGTH])
    same = rows.run([LENGTH], backend=exact)
    assert torch.equal(out[:PROMPT], same[:PROMPT])
    assert not torch.isclose(out[PROMPT:], same[PROMPT:], atol=1e-4).all(1).any()
    for position in range(PROMPT, LENGTH):
        rows.check(out[position], position)


@pytest.mark.parametrize("encoding", [Encoding.BF16, *CODED])
def test_the_choice_does_not_depend_on_the_cache(encoding: Encoding) -> None:
    rows = Rows(encoding=encoding)
    out = rows.run([LENGTH])
    for position in range(PROMPT, LENGTH, 7):
        rows.check(out[position], position)


@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.INT8])
def test_bits_are_the_sequences_own(encoding: Encoding) -> None:
    """However a prompt is cut, a replay is computed or drafts are verified; with two threads as with one."""
    whole = Rows(LAYER, encoding).run([LENGTH])
    for counts in ([PROMPT, *[1] * 50], [1] * LENGTH, [70, 9, 70, 1, 3, 17, 30], [149, 51]):
        assert torch.equal(Rows(LAYER, encoding).run(counts), whole), counts
    torch.set_num_threads(3)
    assert torch.equal(Rows(LAYER, encoding).run([33, 117, 1, 49]), whole)


def test_bits_on_every_instruction_set() -> None:
    results = [Rows(variant=variant).run([PROMPT, 50]) for variant in variants()]
    assert all(torch.equal(result, results[0]) for result in results)


def test_drafts_that_were_refused_leave_nothing() -> None:
    """They fill a block and complete another's; the true tokens are written over them."""
    whole, rows = Rows().run([LENGTH]), Rows()
    rows.run([PROMPT])
    done = PROMPT
    for accepted, drafted in itertools.cycle([(1, 20), (3, 9), (5, 16), (2, 2)]):
        if done + drafted > LENGTH:
            break
        keep = rows.q.clone(), rows.k.clone(), rows.v.clone()
        for part, wrong in zip((rows.q, rows.k, rows.v), rows.draw(drafted - accepted), strict=True):
            part[done + accepted : done + drafted] = 9 * wrong
        out = rows.run([drafted], done)[:accepted]
        assert torch.equal(out, whole[done : done + accepted])
        rows.q, rows.k, rows.v = keep
        done += accepted
    assert torch.equal(rows.run([LENGTH - done], done), whole[done:])


@pytest.mark.parametrize("layer", SHAPES[-2:], ids=lambda layer: f"{layer.num_heads}x{layer.head_dim}")
def test_sketches_are_of_the_keys_after_any_life_of_a_block(layer: AttentionSpec) -> None:
    """Blocks are used again by shorter sequences and copied."""
    rows = Rows(layer)
    rows.run([LENGTH])
    for _ in range(4):
        rows.q, rows.k, rows.v = rows.draw(LENGTH)
        rows.table = rows.table[torch.randperm(len(rows.table), generator=rows.random)]
        rows.run([40, 1, 1, 58, 100])
        source, target = rows.table[2:5].long(), torch.tensor([91, 92, 93])
        rows.cache.copy_blocks(source, target)
        rows.table = torch.cat((rows.table[:2], target.int(), rows.table[5:]))
        codes, scales = sketches(rows)
        wanted, steps = rounded(rows.k, 7)
        assert torch.equal(scales, steps[..., 0])
        assert torch.equal(codes[..., : layer.head_dim].float(), wanted)
        assert not codes[..., layer.head_dim :].any()
        rest = [number for number in range(NUM_BLOCKS) if number not in rows.table.tolist()][
            : len(rows.table)
        ]
        rows.table = torch.tensor(rest, dtype=torch.int32)
        rows.run([LENGTH])


def test_company_changes_nothing() -> None:
    rows, whole = Rows(), Rows().run([LENGTH])
    rows.run([LENGTH - 1])
    q, k, v = rows.draw(2)
    last = LENGTH - 1
    other = torch.tensor([b for b in range(NUM_BLOCKS) if b not in rows.table.tolist()][: len(rows.table)])
    slots = torch.tensor(
        [int(other[0]) * SIZE, int(other[0]) * SIZE + 1, int(rows.table[-1]) * SIZE + last % SIZE]
    )
    tables = torch.stack((other.int(), rows.table))
    positions = torch.tensor([0, 1, last])
    batch = AttentionBatch([2, 1], [2, LENGTH], tables, slots, positions, prompt_lens=[2, PROMPT])
    parts = (torch.cat((a, b[last:])) for a, b in zip((q, k, v), (rows.q, rows.k, rows.v), strict=True))
    out = rows.backend.plan(batch, rows.spec, rows.encoding)(rows.layer, rows.cache, *parts)
    assert torch.equal(out[2], whole[last])


def test_a_key_that_is_broken_is_not_left_out() -> None:
    rows = Rows()
    rows.k[70] = float("nan")
    assert rows.run([LENGTH])[PROMPT:].isnan().all()


@pytest.mark.parametrize("layer", [replace(LAYER, sliding_window=100), LAYER])
def test_windows_and_keep_all_are_exact(layer: AttentionSpec) -> None:
    rows = Rows(layer, choice=CHOICE if layer.sliding_window else replace(CHOICE, keep=1.0))
    assert torch.equal(rows.run([LENGTH]), rows.run([LENGTH], backend=CpuAttention()))


def test_options() -> None:
    assert BlockChoice.read({"keep": "0.5", "least": "64"}) == BlockChoice(keep=0.5, least=64)
    for wrong in ({"keep": "0"}, {"keep": "nan"}, {"keep": "1.01"}, {"least": "-1"}, {"last": "3"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            BlockChoice.read(wrong)
    told = SparseAttention().told({"keep": "0.875"})
    assert "0.875 of their weight" in told.approximation
