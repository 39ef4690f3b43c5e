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

// What is needed after the work at hand: no first-level cache holds both.
static inline void fetch_early(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i, 0, 2);
}

// Where a run's keys and values lie; the first sixteen begin at key `base` of the sequence.
template <class E>
struct Run {
  using Code = typename E::Code;
  int64_t begin, end, base, groups, panel;  // `panel` codes from one panel of values to the next
  bool asked_for;                           // all of it
  const Code *keys[GROUPS], *values[GROUPS];
  const typename Paged<E>::Side *key_scales[GROUPS], *value_scales[GROUPS];

  // of the keys from `begin` to `end`, which lie in one run
  void find(const Paged<E>& paged, const int32_t* table, int64_t head, int64_t first, int64_t last) {
    begin = first, end = last, asked_for = false;
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
  void expect_scales() const {
    if constexpr (E::SCALED)
      for (int64_t g = 0; g < groups; ++g) expect_read(key_scales[g]), expect_read(value_scales[g]);
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

// Scores of R queries with sixteen keys.
template <class E, int R>
static inline void score(const float* q, int64_t units, const typename E::Code* keys, float* scores, int64_t stride) {
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

// Sums that are kept at once: enough for products to follow each other without waiting, few enough for the registers.
template <int R>
constexpr int SUMS = HF_ISA_NUMBER < HF_AVX512 ? 1 : R == 1 ? 8 : R <= 3 ? 4 : 2;

// Scores of R queries with the keys of G sixteens from `g` on. Meanwhile the values of these keys are asked for, if they
// have not been, and the keys of the run that comes next. A function of its own, so that it has all registers.
template <int R, int G>
[[gnu::noinline]] static void score(const int16_t* q, int64_t units, const Run<Int8>& run, const Run<Int8>& next, int64_t g,
                                    float* scores) {
  constexpr int STEPS = LANES / 2;  // of a panel of values, which has as many bytes as so many steps of keys
  Ints sums[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < G; ++n) sums[r][n] = all(0);
  for (int64_t begin = 0; begin < units; begin += STEPS) {
    for (int n = 0; n < G; ++n) {
      if (!run.asked_for) fetch(run.values[g + n] + begin / STEPS * run.panel, LANES * LANES);
      if (g + n < next.groups) fetch_early(next.keys[g + n] + begin * UNIT, LANES * LANES);
    }
    const int8_t* keys[G];
#pragma GCC unroll 8
    for (int n = 0; n < G; ++n) keys[n] = run.keys[g + n];
    const int64_t end = begin + STEPS < units ? begin + STEPS : units;
#pragma GCC unroll 1  // more, and the sums no longer stay in registers
    for (int64_t u = begin; u < end; ++u) {
      Pairs two[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) two[r] = broadcast_pair(q + (r * units + u) * 2);
#pragma GCC unroll 8
      for (int n = 0; n < G; ++n) {
        const Pairs pairs = load_pairs(keys[n] + u * UNIT);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums[r][n] = dot(sums[r][n], pairs, two[r]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < G; ++n) store(scores + r * RUN + (g + n) * LANES, to_float(sums[r][n]));
}

// The same with all keys from `g` to `end`.
template <int R, int G = SUMS<R>>
static inline void score_all(const int16_t* q, int64_t units, const Run<Int8>& run, const Run<Int8>& next, int64_t g,
                             int64_t end, float* scores) {
  for (; g + G <= end; g += G) score<R, G>(q, units, run, next, g, scores);
  if constexpr (G > 1)
    if (g < end) score_all<R, G / 2>(q, units, run, next, g, end, scores);
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

// N panels of R rows: the products of all the run's codes with `weights`, which are 0 for keys that are not seen.
// Meanwhile odd panels of the run that comes next are asked for, a line of each for every two steps.
template <int R, int N>
[[gnu::noinline]] static void mix(const int16_t* weights, const float* factors, const Run<Int8>& run, const Run<Int8>& next,
                                  int64_t panel, float* sums, int64_t width) {
  Ints sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[r][n] = all(0);
  for (int64_t g = 0; g < run.groups; ++g) {
    const int8_t* values = run.values[g] + panel * run.panel;
    const int8_t* early = (g < next.groups ? next.values[g] : run.values[g]) + panel * run.panel;
    const int odd = N > 1 ? 1 : 1 - int(panel % 2);
    const int16_t* weight = weights + g * LANES;
#pragma GCC unroll 1  // more, and the sums no longer stay in registers
    for (int u = 0; u < LANES / 2; u += 2) {
#pragma GCC unroll 8
      for (int n = odd; n < N; n += 2) fetch_early(early + n * run.panel + u * UNIT, 2 * UNIT);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Pairs two[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) two[r] = broadcast_pair(weight + r * RUN + 2 * (u + half));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const Pairs pairs = load_pairs(values + n * run.panel + (u + half) * UNIT);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[r][n] = dot(sum[r][n], pairs, two[r]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      store(sums + r * width + (panel + n) * LANES, mul(to_float(sum[r][n]), broadcast(factors[r])));
}

// The same of all panels from `panel` on.
template <int R, int N>
static inline void mix_all(const int16_t* weights, const float* factors, const Run<Int8>& run, const Run<Int8>& next,
                           int64_t panel, int64_t panels, float* sums, int64_t width) {
  for (; panel + N <= panels; panel += N) mix<R, N>(weights, factors, run, next, panel, sums, width);
  if constexpr (N > 1)
    if (panel < panels) mix_all<R, N / 2>(weights, factors, run, next, panel, panels, sums, width);
}

}  // namespace HF_ISA
