// Which blocks a query attends to when it may not have all: those whose keys get most of its weight, as sketches tell.
//
// Sketches give a guess of each score; a query head's guesses become weights by softmax over all its keys, and a block
// counts as much as its keys' weights over the heads that share a kv head come to. What a row takes depends on its own
// query and keys alone; of equal blocks the earlier one is taken.
#pragma once

#include "sketch.h"
#include "softmax.h"

namespace HF_ISA {

// A query's choice.
struct Choice {
  int64_t least;        // blocks in all, no more than there are
  int64_t first, last;  // blocks at the start, and before the query's own, that are taken in any case
  double left_out;      // the share of weight that blocks may have which are left out
};

constexpr int64_t STRETCH = 256;  // keys at least; whole blocks

// A thread's memory to choose in for `rows` queries among `blocks` blocks; tiles.py makes room for it.
struct ChoiceRoom {
  int64_t rows, stretch, stride;  // keys that are taken together, and numbers that a row has for all blocks
  float *factors, *scores;        // [rows], [rows][keys of a stretch]
  float *most, *sums;             // [rows][blocks]: the largest score of the stretch, and weights against it
  float* merits;                  // [blocks]
  int32_t *starts, *chosen;       // [rows], [blocks]
  int8_t* q;                      // [rows][columns]
  bool* taken;                    // [blocks]

  ChoiceRoom(float* memory, int64_t rows, const Sketches& sketches, int64_t blocks)
      : rows(rows), stretch(up(STRETCH, sketches.size)), stride(up(blocks, LANES)) {
    const auto take = [&](int64_t floats) { return memory += floats, memory - floats; };
    factors = take(rows), starts = reinterpret_cast<int32_t*>(take(rows));
    q = reinterpret_cast<int8_t*>(take(rows * sketches.width / 4));
    scores = take(rows * stretch), most = take(rows * stride), sums = take(rows * stride);
    merits = take(stride), chosen = reinterpret_cast<int32_t*>(take(stride)), taken = reinterpret_cast<bool*>(memory);
  }
};

constexpr float LOG2_E = 1.44269504f;

// The queries [rows][dim] times `scale`, as sketches are multiplied with: what they give are powers of two, with a
// `softcap` of e.
template <class T>
static inline void code_queries(const T* q, int64_t dim, float scale, double softcap, const Sketches& sketches, const ChoiceRoom& room) {
  int16_t codes[MOST_DIM];
  for (int64_t row = 0; row < room.rows; ++row) {
    room.factors[row] = to_codes(q + row * dim, dim, sketches.width, scale, GUESS_TOP, codes) * (softcap != 0 ? 1.0f : LOG2_E);
    int32_t sum = 0;
    for (int64_t d = 0; d < sketches.width; ++d) room.q[row * sketches.width + d] = int8_t(codes[d]), sum += codes[d];
    room.starts[row] = -SKETCH_ZERO * sum;
  }
}

// Scores of all rows with the sketches of a block's keys, while those of the block `ahead` are asked for.
static inline void guess_block(const Sketches& sketches, int64_t block, int64_t ahead, int64_t head, const ChoiceRoom& room,
                               float* scores) {
  const float* scales = sketches.scales(block, head);
  for (int64_t offset = 0; offset < sketches.size; offset += LANES) {
    const uint8_t *keys = sketches.codes(block, head, offset), *next = sketches.codes(ahead, head, offset);
    expect_read(sketches.scales(ahead, head) + offset);
    const auto some = [&](auto taken, int64_t row) {
      guess<decltype(taken)::COUNT>(room.q + row * sketches.width, room.starts + row, room.factors + row, sketches.units(), keys,
                                    scales + offset, next, scores + row * room.stretch + offset, room.stretch);
    };
    by_rows(room.rows, [&](auto taken, int64_t row) {
      if constexpr (decltype(taken)::COUNT == 6)  // their sums do not stay in registers
        some(Rows<3>{}, row), some(Rows<3>{}, row + 3);
      else
        some(taken, row);
    });
  }
}

// 2^x within a ten thousandth, for x up to 126; from -126 down 2^-126.
static inline Vec raise_two(const Vec& x) {
  const Vec round = broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves whole numbers
  const Vec kept = max(broadcast(-126.0f), x), n = add(kept, round), r = sub(kept, sub(n, round));  // x last: NaN stays
  Vec p = broadcast(5.51114194e-2f);
  p = fma(p, r, broadcast(2.42606550e-1f));
  p = fma(p, r, broadcast(6.93272114e-1f));
  p = fma(p, r, broadcast(9.99928653e-1f));
  return raise(p, n);
}

// `sum` of four vectors.
static inline void sum_four(const Vec* a, float* sums) {
#if HF_ISA_NUMBER >= HF_AVX512
  __m512 eights[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 x = a[2 * i].v, y = a[2 * i + 1].v;
    eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  Vec x = {_mm512_add_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88), _mm512_shuffle_f32x4(eights[0], eights[1], 0xdd))};
  x = add(x, {_mm512_permute_ps(x.v, 0x4e)});
  float lanes[LANES];
  store(lanes, add(x, swap_pairs(x)));
  for (int i = 0; i < 4; ++i) sums[i] = lanes[4 * i];
#else
  for (int i = 0; i < 4; ++i) sums[i] = sum(a[i]);
#endif
}

// Of a row's scores with `blocks` blocks, of which `keys` are there: the largest of all, in powers of two, and the sum of
// each block's weights against it, which is NaN where a score is. With a `softcap` scores are in powers of e.
static inline void weigh(float* scores, int64_t keys, int64_t blocks, int64_t size, double softcap, float* most, float* sums) {
  if (softcap != 0)
    for (int64_t i = 0; i < blocks * size; i += LANES) store(scores + i, mul(cap(load(scores + i), softcap), broadcast(LOG2_E)));
  for (int64_t key = keys; key < blocks * size; ++key) scores[key] = -__builtin_inff();
  Vec top = broadcast(-__builtin_inff());
  for (int64_t i = 0; i < blocks * size; i += LANES) top = max(load(scores + i), top);
  const float one = largest(top);
  const Vec least = broadcast(one);
  const auto weights_of = [&](int64_t block) {
    Vec weights = zero();
    for (const float *at = scores + block * size, *end = at + size; at < end; at += LANES)
      weights = add(weights, raise_two(sub(load(at), least)));
    return weights;
  };
  int64_t block = 0;
  for (; block + 4 <= blocks; block += 4) {
    const Vec four[4] = {weights_of(block), weights_of(block + 1), weights_of(block + 2), weights_of(block + 3)};
    sum_four(four, sums + block);
  }
  for (; block < blocks; ++block) sums[block] = sum(weights_of(block));
  for (block = 0; block < blocks; ++block) most[block] = one;
}

// Adds to `merits` a row's share of weight in each block, of which `sums` are against `most`; room for whole vectors.
// A block with a score that is NaN gets infinity. `sink` is a score that takes weight, too.
static inline void add_shares(float* most, float* sums, int64_t blocks, const float* sink, float* merits) {
  const Vec infinity = broadcast(__builtin_inff());
  const int64_t padded = up(blocks, LANES);
  for (int64_t i = blocks; i < padded; ++i) most[i] = -__builtin_inff(), sums[i] = 0;
  Vec top = broadcast(sink ? *sink * LOG2_E : -__builtin_inff()), total = zero();
  for (int64_t i = 0; i < padded; i += LANES) top = max(load(most + i), top);
  top = broadcast(largest(top));
  for (int64_t i = 0; i < padded; i += LANES) {
    const Vec weight = mul(load(sums + i), raise_two(sub(load(most + i), top)));
    store(sums + i, where_less(weight, infinity, weight, infinity));  // NaN, too
    total = add(total, where_less(weight, infinity, weight, zero()));
  }
  float whole[LANES];
  store(whole, raise_two(sub(broadcast(sink ? *sink * LOG2_E : -__builtin_inff()), top)));
  const Vec share = broadcast(1.0f / (sum(total) + whole[0]));
  for (int64_t i = 0; i < padded; i += LANES) store(merits + i, fma(load(sums + i), share, load(merits + i)));
}

// Marks in `taken` the largest of `count` numbers, none of them negative or NaN: at least `least`, and so many that the
// others come to no more than `left_out`; the first of equal ones.
static inline void take_largest(const float* merits, int64_t count, int64_t least, double left_out, bool* taken) {
  const auto bits = [&](int64_t i) {  // in the order of the numbers
    uint32_t own;
    __builtin_memcpy(&own, merits + i, 4);
    return own;
  };
  const auto weight = [&](int64_t i) { return merits[i] < __builtin_inff() ? double(merits[i]) : 0.0; };
  int64_t endless = 0;
  double rest = 0;  // of those that are not taken yet
  for (int64_t i = 0; i < count; ++i) rest += weight(i), endless += !(merits[i] < __builtin_inff());
  int64_t wanted = endless > least ? endless : least;  // yet
  uint32_t digits = 0, mask = 0;                       // of the last that is taken
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {}, digit = 255;
    double sums[256] = {};
    for (int64_t i = 0; i < count; ++i)
      if ((bits(i) & mask) == digits) ++counts[bits(i) >> shift & 255], sums[bits(i) >> shift & 255] += weight(i);
    while (digit > 0 && (counts[digit] < wanted || rest - sums[digit] > left_out)) wanted -= counts[digit], rest -= sums[digit--];
    digits |= uint32_t(digit) << shift, mask |= 255u << shift;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t own = bits(i);
    taken[i] = own > digits || (own == digits && (wanted > 0 || rest > left_out));
    if (taken[i] && own == digits) --wanted, rest -= weight(i);
  }
}

// The blocks that the room's queries of one kv head, at `position`, attend to: room.chosen, ascending, their own block last.
// Returned is how many. `sinks` of the rows may be null.
static inline int64_t choose_blocks(const Choice& choice, const Sketches& sketches, const int32_t* table, int64_t position,
                                    int64_t head, double softcap, const float* sinks, const ChoiceRoom& room) {
  const int64_t size = sketches.size, own = position / size, blocks = own + 1, first = choice.first, end = own - choice.last;
  const int64_t step = room.stretch / size;
  for (int64_t begin = 0; begin < blocks; begin += step) {
    const int64_t some = begin + step < blocks ? step : blocks - begin;
    for (int64_t i = 0; i < some; ++i) {
      const int64_t ahead = begin + i + step;  // of the next stretch: memory is not idle while weights are summed
      guess_block(sketches, table[begin + i], table[ahead < blocks ? ahead : own], head, room, room.scores + i * size);
    }
    const int64_t keys = position + 1 - begin * size;  // the last block has some that are not there yet
    for (int64_t row = 0; row < room.rows; ++row)
      weigh(room.scores + row * room.stretch, keys, some, size, softcap, room.most + row * room.stride + begin,
            room.sums + row * room.stride + begin);
  }
  for (int64_t i = 0; i < room.stride; i += LANES) store(room.merits + i, zero());
  for (int64_t row = 0; row < room.rows; ++row)
    add_shares(room.most + row * room.stride, room.sums + row * room.stride, blocks, sinks ? sinks + row : nullptr, room.merits);
  take_largest(room.merits + first, end - first, choice.least - choice.first - choice.last - 1,
               choice.left_out * double(room.rows), room.taken);
  int64_t n = 0;
  for (int64_t i = 0; i < blocks; ++i)
    if (i < first || i >= end || room.taken[i - first]) room.chosen[n++] = table[i];
  return n;
}

}  // namespace HF_ISA
