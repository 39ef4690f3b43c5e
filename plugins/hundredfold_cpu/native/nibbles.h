// Caches of 4 bits a number: how they are written, scored and summed.
//
// Each token's head is cut into bands of 32 columns. A number is `scale * code + least` with codes 0 to 15; `least` is the
// band's smallest number and `scale` a fifteenth of the way to its largest, both in half precision. Products of codes
// with int16 queries and weights are exact, and what `least` adds needs a query's sum over the band, or the sum of
// weights times `least`: so no code is ever made a float.
//
//   keys    [tokens / 16][columns / 4][32 bytes], columns padded to four: byte 2 * token + i has columns i and i + 2
//   values  [columns / 16][tokens / 2][16 bytes]: byte 2 * column + i has columns `column` and `column + 8` of token i
//   sides   [tokens / 16][bands][2][16], scale and least of keys, and of values
//
// No byte belongs to two tokens: threads write tokens without asking each other.
#pragma once

#include "softmax.h"

namespace HF_ISA {

// Rounds half to even; `x` has to be finite and at most 65504.
static inline uint16_t to_half(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  const uint32_t normal = ((rest + 0xfffu + (rest >> 13 & 1)) >> 13) - (112u << 10);
  float magnitude;
  __builtin_memcpy(&magnitude, &rest, 4);
  const float whole = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
  const uint32_t small = uint32_t((magnitude * 0x1p24f + whole) - whole);  // below 2^-14: multiples of 2^-24
  return uint16_t(sign | (rest < 0x38800000u ? small : normal));
}

static inline float from_half(uint16_t x) {
  const uint16_t all_lanes[LANES] = {x};
  float lanes[LANES];
  store(lanes, load_half(all_lanes));
  return lanes[0];
}

static inline float to_finite_half(float x) { return x < -65504.0f ? -65504.0f : x > 65504.0f ? 65504.0f : x; }

// One band of `count` numbers, with room for whole vectors: codes, scale and least.
static inline void encode_band(float* x, int64_t count, int16_t* codes, uint16_t* scale, uint16_t* least) {
  const int64_t padded = up(count, LANES);
  for (int64_t i = count; i < padded; ++i) x[i] = x[0];
  if (!(top_of(x, padded) < __builtin_inff())) {
    *scale = *least = 0x7e00u;  // NaN
    for (int64_t i = 0; i < padded; ++i) codes[i] = 0;
    return;
  }
  Vec high = load(x), low = high;
  for (int64_t i = LANES; i < padded; i += LANES) high = max(high, load(x + i)), low = min(low, load(x + i));
  const float smallest = to_finite_half(-largest(negate(low))) + 0.0f, most = to_finite_half(largest(high));
  *least = to_half(smallest);
  const float from = from_half(*least);
  *scale = to_half(most > from ? (most - from) / 15.0f : 0.0f);
  const float step = from_half(*scale);
  const Vec shift = broadcast(from), ratio = broadcast(step > 0 ? 1.0f / step : 0.0f), top = broadcast(15.0f);
  for (int64_t i = 0; i < padded; i += LANES)
    store_int16(codes + i, min(max(mul(sub(load(x + i), shift), ratio), zero()), top));
}

// One token's key or value: `put(d, codes)` takes a band's codes that begin at column d.
template <class T, class F>
static inline void write_bands(const T* x, int64_t dim, uint16_t* sides, F put) {
  for (int64_t d = 0; d < dim; d += BAND, sides += 2 * LANES) {
    const int64_t count = dim - d < BAND ? dim - d : BAND;
    float wide[BAND];
    int16_t codes[BAND] = {};
    for (int64_t i = 0; i < count; i += LANES) store(wide + i, get_part(x + d + i, count - i));
    encode_band(wide, count, codes, sides, sides + LANES);
    put(d, codes);
  }
}

template <class T>
static void write_token(const Paged<Int4>& paged, int64_t slot, int64_t head, const T* k, const T* v) {
  const int64_t block = slot / paged.size, offset = slot % paged.size, lane = offset % LANES;
  const int64_t first = offset - lane, panel = paged.panel(), columns = 2 * paged.key_units, width = paged.panels * LANES;
  uint8_t* run = paged.run(block, head);
  uint8_t* key = paged.keys(run, first) + 2 * lane;
  uint8_t* value = paged.values(run, offset / 2 * 2) + offset % 2;
  write_bands(k, paged.dim, paged.key_scales(run) + first * paged.sides + lane, [&](int64_t d, const int16_t* codes) {
    for (int64_t i = 0; i < BAND && d + i < columns; i += 4)
      for (int64_t j = 0; j < 2; ++j) key[(d + i) / 4 * UNIT + j] = uint8_t(codes[i + j] | codes[i + j + 2] << 4);
  });
  write_bands(v, paged.dim, paged.value_scales(run) + first * paged.sides + lane, [&](int64_t d, const int16_t* codes) {
    for (int64_t i = 0; i < BAND && d + i < width; i += LANES)
      for (int64_t j = 0; j < LANES / 2; ++j)
        value[(d + i) / LANES * panel + 2 * j] = uint8_t(codes[i + j] | codes[i + j + LANES / 2] << 4);
  });
}

// What a tile keeps beside its queries, which take half of their room: their sums over bands, and what `least` adds.
struct Bands {
  float* memory;
  int64_t rows, bands;

  Bands(const Room<Int4>& room, const Paged<Int4>& paged)
      : memory(reinterpret_cast<float*>(room.q) + room.rows * room.width / 2), rows(room.rows), bands(paged.bands) {}

  float* sums(int64_t row) const { return memory + row * bands; }
  float* shifts() const { return memory + rows * bands; }
};

static inline void sum_bands(const int16_t* codes, int64_t columns, float* sums) {
  for (int64_t d = 0; d < columns; d += BAND) {
    int32_t total = 0;
    for (int64_t i = d; i < columns && i < d + BAND; ++i) total += codes[i];
    *sums++ = float(total);  // exact
  }
}

// Scores of R queries from `row` on with sixteen keys.
template <int R>
static inline void score_bands(const Room<Int4>& room, const Paged<Int4>& paged, int64_t row, const uint8_t* keys,
                               const uint16_t* sides, float* scores) {
  const int64_t columns = 2 * paged.key_units;
  const int16_t* q = room.q + row * columns;
  const Bands beside(room, paged);
  for (int r = 0; r < R; ++r) store(scores + r * RUN, zero());
  for (int64_t band = 0; band < paged.bands; ++band, sides += 2 * LANES) {
    const int64_t begin = band * BAND, end = columns < begin + BAND ? columns : begin + BAND;
    Ints sums[R];
    for (int r = 0; r < R; ++r) sums[r] = all(0);
    for (int64_t d = begin; d < end; d += 4) {
      Pairs low, high;
      load_nibbles(keys + d / 4 * UNIT, low, high);
      for (int r = 0; r < R; ++r) sums[r] = dot(sums[r], low, broadcast_pair(q + r * columns + d));
      for (int r = 0; r < R; ++r) sums[r] = dot(sums[r], high, broadcast_pair(q + r * columns + d + 2));
    }
    const Vec scale_by = load_half(sides), least = load_half(sides + LANES);
    for (int r = 0; r < R; ++r) {
      const Vec shifted = fma(least, broadcast(beside.sums(row + r)[band]), load(scores + r * RUN));
      store(scores + r * RUN, fma(to_float(sums[r]), scale_by, shifted));
    }
  }
  for (int r = 0; r < R; ++r) store(scores + r * RUN, mul(load(scores + r * RUN), broadcast(room.q_factors[row + r])));
}

// A row's weights of keys first to last, times the scales of one band, as integers; and what `least` adds.
static inline void weigh_band(const Run<Int4>& run, const Room<Int4>& room, int64_t row, int64_t band, int64_t first,
                              int64_t last, float* shift) {
  const float* weights = room.scores + row * RUN;
  int16_t* codes = room.weights + row * RUN;
  const int64_t from = first / LANES * LANES, to = up(last, LANES);
  float scaled[RUN], shifts[RUN];
  for (int64_t i = from; i < to; i += LANES) {
    const uint16_t* sides = run.value_scales[i / LANES] + band * 2 * LANES;
    const Vec weight = load(weights + i);
    store(scaled + i, mul(weight, load_half(sides))), store(shifts + i, mul(weight, load_half(sides + LANES)));
  }
  // what is not seen may be anything
  for (int64_t i = from; i < first; ++i) scaled[i] = shifts[i] = 0;
  for (int64_t i = last; i < to; ++i) scaled[i] = shifts[i] = 0;
  Vec total = zero();
  for (int64_t i = from; i < to; i += LANES) total = add(total, load(shifts + i));
  *shift = sum(total);
  room.weight_factors[row] = to_int16(scaled + from, to - from, top_of(scaled + from, to - from), codes + from);
  for (int64_t i = 0; i < from; ++i) codes[i] = 0;
  for (int64_t i = to; i < run.groups * LANES; ++i) codes[i] = 0;
}

// One panel of R rows from `row` on: see `mix` of int8.
template <int R>
static inline void mix_band(const Run<Int4>& run, const Room<Int4>& room, const float* shifts, int64_t row, int64_t panel) {
  Ints sum[R];
  for (int r = 0; r < R; ++r) sum[r] = all(0);
  for (int64_t g = 0; g < run.groups; ++g) {
    const uint8_t* values = run.values[g] + panel * run.panel;
    const int16_t* weight = room.weights + row * RUN + g * LANES;
#pragma GCC unroll 1  // more, and the sums no longer stay in registers
    for (int u = 0; u < LANES / 2; ++u) {
      const Pairs pairs = load_nibbles(values + u * LANES);
      for (int r = 0; r < R; ++r) sum[r] = dot(sum[r], pairs, broadcast_pair(weight + r * RUN + 2 * u));
    }
  }
  for (int r = 0; r < R; ++r)
    store(room.part + (row + r) * room.width + panel * LANES,
          fma(to_float(sum[r]), broadcast(room.weight_factors[row + r]), broadcast(shifts[row + r])));
}

// The weighted values of a run, for every row; `seen(query, first, last)` tells what one sees of it.
template <class F>
static inline void sum_values(const Run<Int4>& run, const Run<Int4>& next, const Paged<Int4>& paged, const Room<Int4>& room,
                              int64_t queries, F seen) {
  const int64_t group = room.rows / queries, soon = next.groups < SOON ? next.groups : SOON;
  float* shifts = Bands(room, paged).shifts();
  int64_t asked = 0;
  for (int64_t band = 0; band < paged.bands; ++band) {
    for (int64_t row = 0; row < room.rows; ++row) {
      int64_t first, last;
      if (asked < soon) fetch(next.keys[asked++], paged.sixteen_keys());
      if (seen(row / group, first, last)) {
        weigh_band(run, room, row, band, first, last, shifts + row);
      } else {
        room.weight_factors[row] = shifts[row] = 0;
        for (int64_t i = 0; i < run.groups * LANES; ++i) room.weights[row * RUN + i] = 0;
      }
    }
    by_rows(room.rows, [&](auto taken, int64_t row) {
      for (int64_t panel = band * 2; panel < band * 2 + 2 && panel < paged.panels; ++panel)
        mix_band<decltype(taken)::COUNT>(run, room, shifts, row, panel);
    });
  }
}

}  // namespace HF_ISA
