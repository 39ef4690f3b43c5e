// Which blocks a query attends to when it may not have all: by bounds of each block's keys.
//
// Of every full block lie beside the cache, for each kv head, the least and the largest number of each column of its
// keys. From them comes an upper bound of a query's score with any key of the block. A query head's bounds become
// weights as scores do; a block counts as much as its weights over the heads of the group come to. What a row takes
// depends on its own query and keys alone; of equal blocks the earlier one is taken.
#pragma once

#include "softmax.h"

namespace HF_ISA {

// Encodings whose blocks can have bounds.
template <class E>
struct Bounded {
  static constexpr bool VALUE = false;
};
template <>
struct Bounded<Fp32> {
  static constexpr bool VALUE = true;
};
template <>
struct Bounded<Bf16> {
  static constexpr bool VALUE = true;
};
template <>
struct Bounded<Int8> {
  static constexpr bool VALUE = true;
};
template <>
struct Bounded<Fp8> {
  static constexpr bool VALUE = true;
};
template <>
struct Bounded<Fp8E5m2> {
  static constexpr bool VALUE = true;
};

// Two columns of sixteen keys, not scaled.
template <class E>
static inline void two_columns(const typename E::Code* codes, Vec& first, Vec& second) {
  if constexpr (E::INTEGERS) {
    float both[2][LANES];
    for (int i = 0; i < LANES; ++i)
      for (int which = 0; which < 2; ++which) both[which][i] = float(codes[E::place(i, which)]);
    first = load(both[0]), second = load(both[1]);
  } else {
    E::get(codes, first, second);
  }
}

// Where the bounds of a block and head lie: `width` least numbers, then as many largest ones.
static inline float* bounds_of(float* bounds, int64_t block, int64_t head, int64_t heads, int64_t width) {
  return bounds + (block * heads + head) * 2 * width;
}

// Bounds of a block all of whose keys are written. Where a key is not finite they are NaN: such a block goes before all others.
template <class E>
static void bound_block(const Paged<E>& paged, int64_t block, int64_t head, float* bounds) {
  const int64_t width = paged.panels * LANES;
  float* least = bounds_of(bounds, block, head, paged.heads, width);
  float* most = least + width;
  uint8_t* run = paged.run(block, head);
  const float infinity = __builtin_inff();
  Vec broken = zero();
  for (int64_t d = 0; d < width; d += LANES) store(least + d, zero()), store(most + d, zero());
  for (int64_t unit = 0; unit < paged.key_units; ++unit) {
    Vec low[2], high[2];  // `low` of what is negated
    for (int i = 0; i < 2; ++i) low[i] = high[i] = broadcast(-infinity);
    for (int64_t offset = 0; offset < paged.size; offset += LANES) {
      Vec x[2];
      two_columns<E>(paged.keys(run, offset) + unit * UNIT, x[0], x[1]);
      for (int i = 0; i < 2; ++i) {
        if constexpr (E::SCALED) x[i] = mul(x[i], load(paged.key_scales(run) + offset));
        low[i] = max(negate(x[i]), low[i]), high[i] = max(x[i], high[i]);
        broken = add(broken, mul(x[i], zero()));
      }
    }
    for (int64_t i = 0; i < 2; ++i) least[2 * unit + i] = -largest(low[i]), most[2 * unit + i] = largest(high[i]);
  }
  const float worst = sum(broken);
  if (worst != 0)
    for (int64_t d = 0; d < 2 * width; ++d) least[d] = worst;
}

// Bounds of the scores of R queries, apart in what is positive and what is negative, with one block's keys.
template <int R>
static inline void bound_scores(const float* positive, const float* negative, int64_t width, const float* least,
                                float* scores, int64_t stride) {
  const float* most = least + width;
  Vec sums[R];
  for (int r = 0; r < R; ++r) sums[r] = zero();
  for (int64_t d = 0; d < width; d += LANES) {
    const Vec low = load(least + d), high = load(most + d);
    for (int r = 0; r < R; ++r) sums[r] = fma(load(positive + r * width + d), high, sums[r]);
    for (int r = 0; r < R; ++r) sums[r] = fma(load(negative + r * width + d), low, sums[r]);
  }
  for (int r = 0; r < R; ++r) scores[r * stride] = sum(sums[r]);
}

// Adds one query's weights over `count` blocks (room for whole vectors) to `merits`. NaN counts as the largest.
static inline void add_weights(float* scores, int64_t count, float* merits) {
  const float infinity = __builtin_inff();
  for (int64_t i = 0; i < count; ++i)
    if (scores[i] != scores[i]) scores[i] = -infinity, merits[i] = infinity;
  const int64_t padded = up(count, LANES);
  for (int64_t i = count; i < padded; ++i) scores[i] = -infinity;
  Vec most = broadcast(-infinity);
  for (int64_t i = 0; i < padded; i += LANES) most = max(load(scores + i), most);
  const float top = largest(most);
  if (!(top > -infinity && top < infinity)) return;
  Vec total = zero();
  for (int64_t i = 0; i < padded; i += LANES) {
    const Vec weight = exp(sub(load(scores + i), broadcast(top)));
    store(scores + i, weight), total = add(total, weight);
  }
  const Vec share = broadcast(1.0f / sum(total));
  for (int64_t i = 0; i < padded; i += LANES) store(merits + i, fma(load(scores + i), share, load(merits + i)));
}

// Marks in `taken` the `wanted` largest of `count` numbers, none of them negative or NaN; the first of equal ones.
static inline void take_largest(const float* merits, int64_t count, int64_t wanted, bool* taken) {
  const auto bits = [&](int64_t i) {  // in the order of the numbers
    uint32_t own;
    __builtin_memcpy(&own, merits + i, 4);
    return own;
  };
  uint32_t digits = 0, mask = 0;  // of the last that is taken
  int64_t left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {}, digit = 255;
    for (int64_t i = 0; i < count; ++i)
      if ((bits(i) & mask) == digits) ++counts[bits(i) >> shift & 255];
    while (digit > 0 && counts[digit] < left) left -= counts[digit--];
    digits |= uint32_t(digit) << shift, mask |= 255u << shift;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t own = bits(i);
    taken[i] = own > digits || (own == digits && left-- > 0);
  }
}

// A query's choice.
struct Choice {
  int64_t wanted;       // blocks in all, no more than there are
  int64_t first, last;  // blocks at the start, and before the query's own, that are taken in any case

  // floats of memory to choose in from a table of `blocks` for `rows` queries of `width` columns; as in tiles.py
  static int64_t room(int64_t blocks, int64_t rows, int64_t width) {
    return rows * 2 * width + (rows + 2) * up(blocks, LANES);
  }
};

// The blocks that the queries [rows][width], scaled, of one kv head attend to, ascending, the block `own` of the
// queries themselves last; returned is how many. Tables hold `own` + 1 blocks.
static inline int64_t choose_blocks(const Choice& choice, const float* queries, int64_t rows, int64_t width, float* bounds,
                                    const int32_t* table, int64_t own, int64_t head, int64_t heads, float* memory,
                                    int32_t* chosen) {
  const int64_t first = choice.first, end = own - choice.last, count = end - first, each = up(own + 1, LANES);
  const int64_t wanted = choice.wanted - choice.first - choice.last - 1;
  float *positive = memory, *negative = positive + rows * width, *scores = negative + rows * width;
  float* merits = scores + rows * each;
  bool* taken = reinterpret_cast<bool*>(merits + each);
  for (int64_t i = 0; i < rows * width; i += LANES) {
    const Vec x = load(queries + i);
    store(positive + i, max(x, zero())), store(negative + i, min(x, zero()));
  }
  for (int64_t i = 0; i < count; i += LANES) store(merits + i, zero());
  for (int64_t i = 0; i < count; ++i) {
    if (i + 4 < count) fetch(bounds_of(bounds, table[first + i + 4], head, heads, width), 8 * width);
    const float* least = bounds_of(bounds, table[first + i], head, heads, width);
    by_rows(rows, [&](auto some, int64_t row) {
      bound_scores<decltype(some)::COUNT>(positive + row * width, negative + row * width, width, least,
                                          scores + row * each + i, each);
    });
  }
  for (int64_t row = 0; row < rows; ++row) add_weights(scores + row * each, count, merits);
  take_largest(merits, count, wanted, taken);
  int64_t n = 0;
  for (int64_t i = 0; i <= own; ++i)
    if (i < first || i >= end || taken[i - first]) chosen[n++] = table[i];
  return n;
}

}  // namespace HF_ISA
