// Of a run of keys: scores to weights, and the values they weigh; and runs joined, one after the other.
#pragma once

#include "products.h"

namespace HF_ISA {

// What a query is multiplied as.
template <class E>
struct Query {
  using Type = float;
};
template <>
struct Query<Int8> {
  using Type = int16_t;
};
template <>
struct Query<Int4> {
  using Type = int16_t;
};

// A thread's memory to work in, for `rows` queries that share a kv head.
template <class E>
struct Room {
  int64_t rows, width;              // `width` columns of an output, whole vectors
  float *q_factors, *weight_factors;  // [rows]: what the integers of a query, of its weights are multiples of
  float *most, *total, *part;       // of a run, for each row: largest score, sum of weights, weighted values [width]
  float *all_most, *all_total, *whole;  // of all runs until now
  float* scores;                    // [rows][RUN], then weights
  int16_t* weights;                 // [rows][RUN], where products are of integers
  typename Query<E>::Type* q;       // [rows][columns]

  Room(float* memory, int64_t rows, int64_t width) : rows(rows), width(width) {
    const auto take = [&](int64_t floats) { return memory += floats, memory - floats; };
    q_factors = take(rows), weight_factors = take(rows), most = take(rows), total = take(rows);
    all_most = take(rows), all_total = take(rows);
    part = take(rows * width), whole = take(rows * width), scores = take(rows * RUN);
    q = reinterpret_cast<typename Query<E>::Type*>(take(rows * width));
    weights = reinterpret_cast<int16_t*>(memory);  // the last: not all need them
  }
};

// Integers of int16 for `count` numbers (whole vectors), and what they are multiples of.
static inline float to_int16(const float* x, int64_t count, int16_t* to) {
  const Quantized how = quantized(top_of(x, count), INT16_TOP);
  const Vec ratio = broadcast(how.ratio);
  for (int64_t i = 0; i < count; i += LANES) store_int16(to + i, mul(load(x + i), ratio));
  return how.scale;
}

// softcap * tanh(score / softcap)
static inline Vec cap(const Vec& score, double softcap) {
  const Vec capped = sigmoid(mul(score, broadcast(float(2 / softcap))));
  return fma(capped, broadcast(float(2 * softcap)), broadcast(-float(softcap)));
}

// Scores first to last of a row to weights; what is outside may be anything.
template <class E>
static inline void soften(const Run<E>& run, const Room<E>& room, int64_t row, int64_t first, int64_t last, double softcap) {
  float* scores = room.scores + row * RUN;
  const int64_t from = first / LANES * LANES, to = up(last, LANES);
  if constexpr (E::SCALED) {
    const Vec factor = broadcast(room.q_factors[row]);
    for (int64_t i = from; i < to; i += LANES)
      store(scores + i, mul(mul(load(scores + i), load(run.key_scales[i / LANES])), factor));
  }
  if (softcap != 0)
    for (int64_t i = from; i < to; i += LANES) store(scores + i, cap(load(scores + i), softcap));
  const auto edges = [&](float value) {
    for (int64_t i = from; i < first; ++i) scores[i] = value;
    for (int64_t i = last; i < to; ++i) scores[i] = value;
  };
  edges(-__builtin_inff());
  Vec most = broadcast(-__builtin_inff());
  for (int64_t i = from; i < to; i += LANES) most = max(load(scores + i), most);
  const float largest_one = largest(most);
  const Vec least = broadcast(largest_one);
  Vec total = zero();
  for (int64_t i = from; i < to; i += LANES) {
    const Vec weight = exp(sub(load(scores + i), least));
    total = add(total, weight);
    if constexpr (E::SCALED)
      store(scores + i, mul(weight, load(run.value_scales[i / LANES])));
    else
      store(scores + i, weight);
  }
  room.most[row] = largest_one, room.total[row] = sum(total);
  if constexpr (E::INTEGERS && !NIBBLES<E>) {
    edges(0.0f);
    int16_t* weights = room.weights + row * RUN;
    room.weight_factors[row] = to_int16(scores + from, to - from, weights + from);
    for (int64_t i = 0; i < from; ++i) weights[i] = 0;
    for (int64_t i = to; i < run.groups * LANES; ++i) weights[i] = 0;
  }
}

// A row that sees nothing of a run.
template <class E>
static inline void leave_out(const Run<E>& run, const Room<E>& room, int64_t row) {
  room.total[row] = 0;
  if constexpr (E::INTEGERS && !NIBBLES<E>) {
    room.weight_factors[row] = 0;
    for (int64_t i = 0; i < run.groups * LANES; ++i) room.weights[row * RUN + i] = 0;
  }
}

// Adds to the sums of `rows` rows from `row` on the values of keys begin to end of the run.
template <class E>
static inline void add_values(const Run<E>& run, const Paged<E>& paged, const Room<E>& room, int64_t row, int64_t rows,
                              int64_t begin, int64_t end) {
  if (begin >= end) return;
  by_rows(rows, [&](auto taken, int64_t i) {
    constexpr int R = decltype(taken)::COUNT, N = R <= 3 ? 2 : 1;
    const float* weights = room.scores + (row + i) * RUN;
    float* sums = room.part + (row + i) * room.width;
    int64_t panel = 0;
    for (; panel + N <= paged.panels; panel += N)
      mix<E, R, N>(weights, run, begin, end, panel, sums + panel * LANES, room.width);
    for (; panel < paged.panels; ++panel)
      mix<E, R, 1>(weights, run, begin, end, panel, sums + panel * LANES, room.width);
  });
}

// The weighted values of a run, for every row; `seen(query, first, last)` tells what one sees of it.
// `ahead()` is called now and then between products.
template <class E, class F, class A>
static inline void sum_values(const Run<E>& run, const Paged<E>& paged, const Room<E>& room, int64_t queries, F seen,
                              A& ahead) {
  if constexpr (E::INTEGERS) {
    (void)queries, (void)seen;
    by_rows(room.rows, [&](auto taken, int64_t row) {
      for (int64_t panel = 0; panel < paged.panels; ++panel)
        mix<decltype(taken)::COUNT>(room.weights + row * RUN, room.weight_factors + row, run, panel,
                                    room.part + row * room.width + panel * LANES, room.width, ahead);
    });
  } else {
    for (int64_t i = 0; i < ahead.groups * ahead.lines; ++i) ahead();
    for (int64_t i = 0; i < room.rows * room.width; i += LANES) store(room.part + i, zero());
    // keys that all queries see, and before and after them each query's own
    const int64_t group = room.rows / queries;
    int64_t begin = 0, end = RUN, first, last;
    for (int64_t i = 0; i < queries; ++i) {
      const bool any = seen(i, first, last);
      begin = any && first > begin ? first : begin, end = !any ? 0 : last < end ? last : end;
    }
    const bool shared = begin < end;
    for (int64_t i = 0; i < queries; ++i)
      if (seen(i, first, last)) add_values(run, paged, room, i * group, group, first, shared ? begin : last);
    if (shared) {
      add_values(run, paged, room, 0, room.rows, begin, end);
      for (int64_t i = 0; i < queries; ++i)
        if (seen(i, first, last)) add_values(run, paged, room, i * group, group, end, last);
    }
  }
}

// Before the first run: nothing, or a sink, which is a score without a value.
template <class E>
static inline void begin_row(const Room<E>& room, int64_t row, const float* sink) {
  room.all_most[row] = sink ? *sink : 0.0f, room.all_total[row] = sink ? 1.0f : 0.0f;
  for (int64_t d = 0; d < room.width; d += LANES) store(room.whole + row * room.width + d, zero());
}

// Joins a run's largest score, sum of weights and weighted values to those of the runs before it.
template <class E>
static inline void join(const Room<E>& room, int64_t row, float most, float total, const float* part) {
  if (total == 0) return;  // nothing was seen
  float* whole = room.whole + row * room.width;
  if (room.all_total[row] == 0) {
    room.all_most[row] = most, room.all_total[row] = total;
    for (int64_t d = 0; d < room.width; d += LANES) store(whole + d, load(part + d));
    return;
  }
  const float before = room.all_most[row], top = most > before ? most : before;
  const Vec shrink = exp(broadcast(before - top)), own = exp(broadcast(most - top));
  float factors[2][LANES];
  store(factors[0], shrink), store(factors[1], own);
  room.all_most[row] = top, room.all_total[row] = room.all_total[row] * factors[0][0] + total * factors[1][0];
  for (int64_t d = 0; d < room.width; d += LANES)
    store(whole + d, fma(load(part + d), own, mul(load(whole + d), shrink)));
}

}  // namespace HF_ISA
