"""The decoder as one list of native calls over buffers that stay: a step allocates and looks up nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import (
    AttentionBatch,
    CapturedAttention,
    CapturingAttention,
    CapturingElementwise,
    CapturingLinear,
    DenseWeight,
    Linear,
    LookingUpElementwise,
    NativeCall,
    Program,
    Rotation,
)
from hundredfold_worker.model.decoder import Decoder, DecoderLayer, Norm, Projection, QueryKeyNorms
from hundredfold_worker.model.loaded import PagedCache
from hundredfold_worker.model.offload import Part, Stream, StreamedLayers, StreamedProgram

_STEP = 64
"""Rows by which buffers grow; their pages are touched only as far as steps reach."""

_LINE = 64
"""Bytes of a line of the cache."""


class _NotCaptured(Exception):
    """A part of the model has to be called from Python."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A decoder over one cache, for steps of at most ``rows`` tokens and logits of at most ``logit_rows``."""

    cache: PagedCache
    rows: int
    logit_rows: int
    attention: CapturedAttention
    body: Program
    """Up to the attention of the last layer: the cache is complete then."""
    rest: Program
    """From there to the logits, for rows whose logits are wanted."""
    whole: Program
    """Both, for steps that want the logits of every row."""
    hidden: Tensor
    attended: Tensor
    token_ids: Tensor
    """int64[rows], what the program looks up; empty where that is done from here."""
    positions: Tensor
    """The same of angles."""
    angles: tuple[Tensor, ...]
    logits: Tensor
    order: Tensor
    """int64[rows], ascending."""
    stream: Stream | None
    """What reads layers between calls."""

    def takes(self, cache: PagedCache, rows: int, logit_rows: int) -> bool:
        """Whether a step fits."""
        return cache is self.cache and rows <= self.rows and logit_rows <= self.logit_rows

    def forward(
        self,
        decoder: Decoder,
        token_ids: Tensor,
        batch: AttentionBatch,
        logits_at: Tensor,
        before_kernels: Callable[[], None],
    ) -> Tensor:
        """See ``LoadedModel.forward``."""
        rows, wanted = len(token_ids), len(logits_at)
        if len(self.token_ids):
            _copy(token_ids, self.token_ids[:rows])
            _copy(batch.positions, self.positions[:rows])
        else:
            self.hidden[:rows] = decoder.embed(token_ids)
            for table, angles in zip(decoder.rotaries, self.angles, strict=True):
                table.write(batch.positions, angles[:rows])
        self.attention.prepare(batch)
        wants_all = wanted == rows and _equal(logits_at, self.order[:rows])
        before_kernels()
        try:
            self._run(rows, None if wants_all else logits_at)
        finally:
            if self.stream is not None:  # a step that needs no logits ends inside the last layer
                self.stream.go_on(None)
        return self.logits[:wanted]

    def _run(self, rows: int, logits_at: Tensor | None) -> None:
        """With logits of every row, or of some."""
        if logits_at is None:
            self.whole(rows)
            return
        self.body(rows)
        if wanted := len(logits_at):
            for buffer in (self.hidden, self.attended):
                buffer[:wanted] = buffer.index_select(0, logits_at)
            self.rest(wanted)


def _copy(source: Tensor, target: Tensor) -> None:
    """Of a few numbers. On a CPU torch, which lends the interpreter for it, would cost more than the copy."""
    if target.device.type == "cpu":
        target.numpy()[:] = source.numpy()
    else:
        target.copy_(source)


def _equal(left: Tensor, right: Tensor) -> bool:
    """The same of a comparison."""
    if left.device.type == "cpu":
        return bool((left.numpy() == right.numpy()).all())
    return torch.equal(left, right)


def can_capture(decoder: Decoder) -> bool:
    """Whether to try: what the plugins of attention and elementwise operations say."""
    return isinstance(decoder.layers[0].operations, CapturingElementwise) and isinstance(
        decoder.attention, CapturingAttention
    )


def capture(decoder: Decoder, cache: PagedCache, rows: int, logit_rows: int) -> Captured | None:
    """The decoder for steps of ``rows`` tokens and more; ``None`` where a part cannot be captured."""
    try:
        return _Capture(decoder, cache, _room(rows), _room(logit_rows)).captured()
    except _NotCaptured:
        return None


def _room(rows: int) -> int:
    return max(1, -(-rows // _STEP)) * _STEP


class _Capture:
    """Makes the calls in the order of ``Decoder.forward``."""

    def __init__(self, decoder: Decoder, cache: PagedCache, rows: int, logit_rows: int) -> None:
        first = decoder.layers[0]
        operations, backend = first.operations, decoder.attention
        if not isinstance(operations, CapturingElementwise) or not isinstance(backend, CapturingAttention):
            raise _NotCaptured
        planner = decoder.cache_planner
        attention = backend.capturing(planner.spec, planner.encoding)
        if attention is None:
            raise _NotCaptured
        self._decoder = decoder
        self._cache = cache
        self._stream = decoder.layers.stream if isinstance(decoder.layers, StreamedLayers) else None
        self._rows = max(rows, logit_rows)
        self._logit_rows = logit_rows
        self._operations = operations
        self._attention = attention
        self._dtype, self._device = planner.spec.dtype, planner.spec.device
        self._hidden = self._buffer(decoder.hidden_size)
        self._normed = self._buffer(decoder.hidden_size)
        self._delta = self._buffer(decoder.hidden_size)
        self._angles = tuple(table.buffer(self._rows) for table in decoder.rotaries)
        self._token_ids, self._positions = torch.empty(
            (2, self._rows), dtype=torch.int64, device=self._device
        )
        self._shared: dict[tuple[str, int], Tensor] = {}

    def captured(self) -> Captured:
        """The programs."""
        decoder = self._decoder
        lookups = self._lookups()
        body: list[Part] = [(None, lookups)]
        last = len(decoder.layers) - 1
        for index in range(last + 1):
            layer = decoder.layers[index]  # by its number: nothing is read for that
            attended = self._attended(layer.spec.num_heads * layer.spec.head_dim)
            body.append((index, [*self._until_attention(layer, index, attended)]))
            if index != last:
                body.append((index, [*self._after_attention(layer, attended)]))
        logits = self._spaced(self._logit_rows, decoder.vocab_size)
        end = [
            *self._norm_of_sum(decoder.final_norm, self._delta),
            self._linear(decoder.head, self._normed, logits),
        ]
        rest: list[Part] = [(last, [*self._after_attention(layer, attended)]), (None, end)]
        return Captured(
            cache=self._cache,
            rows=self._rows,
            logit_rows=self._logit_rows,
            attention=self._attention,
            body=self._program(body),
            rest=self._program(rest),
            whole=self._program(body + rest),
            hidden=self._hidden,
            attended=attended,
            token_ids=self._token_ids if lookups else self._token_ids[:0],
            positions=self._positions,
            angles=self._angles,
            logits=logits,
            order=torch.arange(self._rows, device=self._device),
            stream=self._stream,
        )

    def _program(self, parts: Sequence[Part]) -> Program:
        if self._stream is not None:
            return StreamedProgram(self._stream, parts, self._operations.program)
        return self._operations.program([call for _, calls in parts for call in calls])

    def _lookups(self) -> list[NativeCall]:
        """Embeddings and angles; empty where not all of them can be captured."""
        decoder, operations = self._decoder, self._operations
        if not isinstance(operations, LookingUpElementwise):
            return []
        scale = decoder.embedding_scale
        calls = [operations.capture_lookup(decoder.embedding.weight, scale, self._token_ids, self._hidden)]
        for table, angles in zip(decoder.rotaries, self._angles, strict=True):
            weight = DenseWeight(table.by_position)
            calls.append(operations.capture_lookup(weight, 1.0, self._positions, angles.flatten(1)))
        captured = [call for call in calls if call is not None]
        return captured if len(captured) == len(calls) else []

    def _until_attention(self, layer: DecoderLayer, index: int, attended: Tensor) -> Iterator[NativeCall]:
        spec = layer.spec
        yield from self._norm_of_sum(layer.attention_norm, self._delta if index else None)
        joined = self._buffer_for("qkv", (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
        yield from self._projection(layer.qkv, self._source(layer.attention_norm), joined)
        heads = joined.view(self._rows, -1, spec.head_dim)
        first_value = spec.num_heads + spec.num_kv_heads
        q, k, v = heads[:, : spec.num_heads], heads[:, spec.num_heads : first_value], heads[:, first_value:]
        if layer.query_key_norm is not None:
            yield from self._query_key_norms(layer.query_key_norm, q, k)
        if layer.rotary is not None:
            table, angles = self._decoder.rotaries[layer.rotary], self._angles[layer.rotary]
            rotation = Rotation(table.dim, table.style, angles)
            yield self._operations.capture_rotate(heads[:, :first_value], rotation)
        yield self._attention.capture(spec, self._cache.layers[index], q, k, v, attended)

    def _after_attention(self, layer: DecoderLayer, attended: Tensor) -> Iterator[NativeCall]:
        yield self._linear(layer.attention_output, attended, self._delta)
        if layer.attention_post_norm is not None:
            yield self._norm_in_place(layer.attention_post_norm, self._delta)
        yield from self._norm_of_sum(layer.mlp_norm, self._delta)
        gate_up = self._buffer_for("gate_up", sum(layer.gate_up.widths))
        yield from self._projection(layer.gate_up, self._source(layer.mlp_norm), gate_up)
        gated = self._buffer_for("gated", gate_up.shape[1] // 2)
        yield self._operations.capture_gated(gate_up, layer.activation, gated)
        yield self._linear(layer.down, gated, self._delta)
        if layer.mlp_post_norm is not None:
            yield self._norm_in_place(layer.mlp_post_norm, self._delta)

    def _source(self, norm: Norm | None) -> Tensor:
        return self._hidden if norm is None else self._normed

    def _norm_of_sum(self, norm: Norm | None, x: Tensor | None) -> Iterator[NativeCall]:
        operations = self._operations
        if norm is None:
            if x is not None:
                yield operations.capture_add(self._hidden, x)
        elif x is None:
            yield operations.capture_rms_norm(self._hidden, norm.weight, norm.eps, self._normed)
        else:
            yield operations.capture_add_rms_norm(self._hidden, x, norm.weight, norm.eps, self._normed)

    def _query_key_norms(self, norms: QueryKeyNorms, q: Tensor, k: Tensor) -> Iterator[NativeCall]:
        for norm, heads in ((norms.query, q), (norms.key, k)):
            whole = heads if norms.by_head else heads.flatten(1)
            yield self._norm_in_place(norm, whole)

    def _norm_in_place(self, norm: Norm, x: Tensor) -> NativeCall:
        return self._operations.capture_rms_norm(x, norm.weight, norm.eps, x)

    def _projection(self, projection: Projection, x: Tensor, out: Tensor) -> Iterator[NativeCall]:
        start = 0
        for part, width in zip(projection.parts, projection.widths, strict=True):
            yield self._linear(part, x, out[:, start : start + width])
            start += width

    def _linear(self, linear: Linear, x: Tensor, out: Tensor) -> NativeCall:
        call = linear.capture(x, out) if isinstance(linear, CapturingLinear) else None
        if call is None:
            raise _NotCaptured
        return call

    def _attended(self, width: int) -> Tensor:
        """Attention writes rows without gaps."""
        key = ("attended", width)
        if key not in self._shared:
            self._shared[key] = torch.empty((self._rows, width), dtype=self._dtype, device=self._device)
        return self._shared[key]

    def _buffer_for(self, what: str, width: int) -> Tensor:
        """One for all layers that need this width."""
        key = (what, width)
        if key not in self._shared:
            self._shared[key] = self._buffer(width)
        return self._shared[key]

    def _buffer(self, width: int) -> Tensor:
        return self._spaced(self._rows, width)

    def _spaced(self, rows: int, width: int) -> Tensor:
        """Rows begin an odd number of lines apart. Products write a few columns of every row at a time: with
        4,096 bytes from row to row, or a multiple, those columns would share one set of the cache.
        """
        line = _LINE // self._dtype.itemsize
        lines = -(-width // line) | 1
        return torch.empty((rows, lines * line), dtype=self._dtype, device=self._device)[:, :width]
