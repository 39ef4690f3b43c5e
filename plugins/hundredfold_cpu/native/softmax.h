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

// Integers of int16 for `count` numbers (whole vectors) whose largest magnitude is `top`, and what they are multiples of.
static inline float to_int16(const float* x, int64_t count, float top, int16_t* to) {
  const Quantized how = quantized(top, INT16_TOP);
  const Vec ratio = broadcast(how.ratio);
  for (int64_t i = 0; i < count; i += LANES) store_int16(to + i, mul(load(x + i), ratio));
  return how.scale;
}

// softcap * tanh(score / softcap)
static inline Vec cap(const Vec& score, double softcap) {
  const Vec capped = sigmoid(mul(score, broadcast(float(2 / softcap))));
  return fma(capped, broadcast(float(2 * softcap)), broadcast(-float(softcap)));
}

// `x` in the lanes from `first` on up to `last`, elsewhere `other`.
static inline Vec within(const Vec& x, int64_t first, int64_t last, const Vec& other) {
  static constexpr float LANE[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec lane = load(LANE);
  return where_less(lane, broadcast(float(first)), other, where_less(lane, broadcast(float(last)), x, other));
}

// Scores first to last of R rows to weights; what is outside may be anything. Of int8 weights become integers, and even
// panels of the run that comes next are asked for meanwhile.
template <int R, class E>
static inline void soften(const Run<E>& run, const Run<E>& next, const Room<E>& room, int64_t row, int64_t first,
                          int64_t last, double softcap) {
  float* scores = room.scores + row * RUN;
  const int64_t from = first / LANES * LANES, to = up(last, LANES);
  const auto on_edge = [&](int64_t i) { return i < first || i + LANES > last; };
  const Vec nothing = broadcast(-__builtin_inff());
  Vec most[R], total[R], top[R];
  for (int r = 0; r < R; ++r) most[r] = nothing, total[r] = top[r] = zero();
  for (int64_t i = from; i < to; i += LANES)
#pragma GCC unroll 3
    for (int r = 0; r < R; ++r) {
      float* at = scores + r * RUN + i;
      Vec score = load(at);
      if constexpr (E::SCALED) score = mul(mul(score, load(run.key_scales[i / LANES])), broadcast(room.q_factors[row + r]));
      if (softcap != 0) score = cap(score, softcap);
      if (on_edge(i)) score = within(score, first - i, last - i, nothing);
      store(at, score);
      most[r] = max(score, most[r]);
    }
  for (int r = 0; r < R; ++r) room.most[row + r] = largest(most[r]), most[r] = broadcast(room.most[row + r]);
  for (int64_t i = from; i < to; i += LANES) {
    if constexpr (BYTES<E>)
      for (int64_t column = 0; row == 0 && i / LANES < next.groups && column < room.width; column += 2 * LANES)
        fetch_early(next.values[i / LANES] + column / LANES * next.panel, LANES * LANES);
#pragma GCC unroll 3
    for (int r = 0; r < R; ++r) {
      float* at = scores + r * RUN + i;
      Vec weight = exp(sub(load(at), most[r]));
      total[r] = add(total[r], weight);
      if constexpr (E::SCALED) weight = mul(weight, load(run.value_scales[i / LANES]));
      if constexpr (BYTES<E>) {
        if (on_edge(i)) weight = within(weight, first - i, last - i, zero());
        top[r] = larger_magnitude(top[r], weight);
      }
      store(at, weight);
    }
  }
  for (int r = 0; r < R; ++r) {
    room.total[row + r] = sum(total[r]);
    if constexpr (BYTES<E>) {
      const float* weights = scores + r * RUN;
      int16_t* codes = room.weights + (row + r) * RUN;
      room.weight_factors[row + r] = to_int16(weights + from, to - from, largest_magnitude(top[r]), codes + from);
      for (int64_t i = 0; i < from; ++i) codes[i] = 0;
      for (int64_t i = to; i < run.groups * LANES; ++i) codes[i] = 0;
    }
  }
}

// A row that sees nothing of a run.
template <class E>
static inline void leave_out(const Run<E>& run, const Room<E>& room, int64_t row) {
  room.total[row] = 0;
  if constexpr (BYTES<E>) {
    room.weight_factors[row] = 0;
    for (int64_t i = 0; i < run.groups * LANES; ++i) room.weights[row * RUN + i] = 0;
  }
}

constexpr int64_t SOON = 16;  // sixteens of keys of the next run that are asked for, where it is not all of them

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
// Meanwhile what follows in `next` is asked for: memory is idle then.
template <class E, class F>
static inline void sum_values(const Run<E>& run, const Run<E>& next, const Paged<E>& paged, const Room<E>& room,
                              int64_t queries, F seen) {
  if constexpr (E::INTEGERS) {
    (void)queries, (void)seen;
    by_rows(room.rows, [&](auto taken, int64_t row) {
      constexpr int R = decltype(taken)::COUNT, N = SUMS<R> < 4 ? SUMS<R> : 4;
      mix_all<R, N>(room.weights + row * RUN, room.weight_factors + row, run, next, 0, paged.panels,
                    room.part + row * room.width, room.width);
    });
  } else {
    for (int64_t g = 0; g < next.groups && g < SOON; ++g) fetch(next.keys[g], paged.sixteen_keys());
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
