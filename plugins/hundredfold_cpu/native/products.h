// Scores of queries with keys, and values times weights: sixteen keys or columns at a time, several queries together.
//
// Of floats, a score is one chain of fused multiply-adds over the columns and an output one chain over the keys. Codes
// of int8 meet queries and weights in int16, whose rounding is far below theirs, and sums are exact. So it does not
// matter to a query which others are computed with it.
#pragma once

#include "paged.h"

namespace HF_ISA {

constexpr int RUN = 512;              // keys that are taken together: as many as int32 holds products of
constexpr int GROUPS = RUN / LANES;   // sixteens of a run
constexpr float INT16_TOP = 32767.0f;

static inline void fetch(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i, 0, 3);
}

// Where a run's keys and values lie; the first sixteen begin at key `base` of the sequence.
template <class E>
struct Run {
  using Code = typename E::Code;
  int64_t base, groups, panel;  // `panel` codes from one panel of values to the next
  const Code *keys[GROUPS], *values[GROUPS];
  const typename Paged<E>::Side *key_scales[GROUPS], *value_scales[GROUPS];

  // of the keys from `begin` to `end`, which lie in one run
  void find(const Paged<E>& paged, const int32_t* table, int64_t head, int64_t begin, int64_t end) {
    base = begin / LANES * LANES, groups = (end - base + LANES - 1) / LANES, panel = paged.panel();
    int64_t index = base / paged.size, offset = base % paged.size;
    for (int64_t g = 0; g < groups; ++g) {
      uint8_t* run = paged.run(table[index], head);
      keys[g] = paged.keys(run, offset), values[g] = paged.values(run, offset);
      key_scales[g] = paged.key_scales(run) + offset * paged.sides;
      value_scales[g] = paged.value_scales(run) + offset * paged.sides;
      offset += LANES;
      if (offset == paged.size) offset = 0, ++index;
    }
  }
};

template <int R>
struct Rows {
  static constexpr int COUNT = R;
};

// Calls f(Rows<R>, first row) until all rows are done.
template <class F>
static inline void by_rows(int64_t rows, F f) {
  int64_t row = 0;
  for (; rows - row >= 6; row += 6) f(Rows<6>{}, row);
  switch (rows - row) {
    case 5: f(Rows<3>{}, row), f(Rows<2>{}, row + 3); break;
    case 4: f(Rows<4>{}, row); break;
    case 3: f(Rows<3>{}, row); break;
    case 2: f(Rows<2>{}, row); break;
    case 1: f(Rows<1>{}, row); break;
  }
}

// Scores of R queries with sixteen keys. Of integers the values are asked for meanwhile, `panel` from one sixteen columns
// to the next.
template <class E, int R>
static inline void score(const float* q, int64_t units, const typename E::Code* keys, const void*, int64_t, float* scores,
                         int64_t stride) {
  Vec sums[R];
  for (int r = 0; r < R; ++r) sums[r] = zero();
  for (int64_t u = 0; u < units; ++u) {
    Vec first, second;
    E::get(keys + u * UNIT, first, second);
    for (int r = 0; r < R; ++r) sums[r] = fma(broadcast(q[(r * units + u) * 2]), first, sums[r]);
    for (int r = 0; r < R; ++r) sums[r] = fma(broadcast(q[(r * units + u) * 2 + 1]), second, sums[r]);
  }
  for (int r = 0; r < R; ++r) store(scores + r * stride, sums[r]);
}

template <class E, int R>
static inline void score(const int16_t* q, int64_t units, const int8_t* keys, const int8_t* values, int64_t panel,
                         float* scores, int64_t stride) {
  Ints sums[R];
  for (int r = 0; r < R; ++r) sums[r] = all(0);
#pragma GCC unroll 2
  for (int64_t u = 0; u < units; ++u) {
    if (u % 2 == 0) expect_read(values + u / 8 * panel + u % 8 * 32);
    const Pairs pairs = load_pairs(keys + u * UNIT);
    for (int r = 0; r < R; ++r) sums[r] = dot(sums[r], pairs, broadcast_pair(q + (r * units + u) * 2));
  }
  for (int r = 0; r < R; ++r) store(scores + r * stride, to_float(sums[r]));
}

// Adds to N panels of R rows' `sums` the values of keys begin to end of the run, times their weights. Others are not
// touched: they may be anything.
template <class E, int R, int N>
static inline void mix(const float* weights, const Run<E>& run, int64_t begin, int64_t end, int64_t first_panel,
                       float* sums, int64_t width) {
  Vec sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = load(sums + r * width + n * LANES);
  for (int64_t key = begin; key < end;) {
    const auto* values = run.values[key / LANES] + first_panel * run.panel;
    const int64_t origin = key / LANES * LANES, stop = end - origin < LANES ? end : origin + LANES;
    while (key < stop) {
      const bool odd = key % 2, both = !odd && key + 1 < stop;
      for (int n = 0; n < N; ++n) {
        Vec first, second;
        E::get(values + n * run.panel + (key - origin) / 2 * UNIT, first, second);
        const float* weight = weights + key;
        if (odd) {
          for (int r = 0; r < R; ++r) sum[r][n] = fma(broadcast(weight[r * RUN]), second, sum[r][n]);
        } else {
          for (int r = 0; r < R; ++r) sum[r][n] = fma(broadcast(weight[r * RUN]), first, sum[r][n]);
          if (both)
            for (int r = 0; r < R; ++r) sum[r][n] = fma(broadcast(weight[r * RUN + 1]), second, sum[r][n]);
        }
      }
      key += both ? 2 : 1;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * width + n * LANES, sum[r][n]);
}

// One panel of R rows: the products of all the run's codes with `weights`, which are 0 for keys that are not seen.
// `ahead()` asks for a line of what is needed next.
template <int R, class A>
static inline void mix(const int16_t* weights, const float* factors, const Run<Int8>& run, int64_t panel, float* sums,
                       int64_t width, A& ahead) {
  Ints sum[R];
  for (int r = 0; r < R; ++r) sum[r] = all(0);
  for (int64_t g = 0; g < run.groups; ++g) {
    const int8_t* values = run.values[g] + panel * run.panel;
    const int16_t* weight = weights + g * LANES;
#pragma GCC unroll 1  // more, and the sums no longer stay in registers
    for (int u = 0; u < LANES / 2; ++u) {
      if (u % 2) ahead();
      const Pairs pairs = load_pairs(values + u * UNIT);
      for (int r = 0; r < R; ++r) sum[r] = dot(sum[r], pairs, broadcast_pair(weight + r * RUN + 2 * u));
    }
  }
  for (int r = 0; r < R; ++r) store(sums + r * width, mul(to_float(sum[r]), broadcast(factors[r])));
}

}  // namespace HF_ISA
