// The heart of the integer products: some rows of input times a panel, the sums of a group in registers.
//
// Sums of integers are exact. Groups become floats in ascending order, one chain of fused multiply-adds an output.
#pragma once

#include "inputs.h"

namespace HF_ISA {

// Columns of a group in most formats.
constexpr int64_t USUAL = 32;
// Groups of packed codes that are asked for ahead: of few rows memory is the limit, and without that a core waits for it
// instead of multiplying meanwhile.
constexpr int64_t AHEAD = 8;
// Rows of a tile for which it pays.
constexpr int FEW = 4;
static_assert(USUAL / STEP<4> <= RUN<4>);

// Where a tile finds the codes of a panel: packed as they lie in memory, or unpacked by `unpack`.
template <int BITS>
struct PackedCodes {
  static constexpr int BYTES = QUAD_BYTES * BITS / 8;
  const uint8_t* codes;

  Quad get(int64_t step) const {
    if constexpr (BITS == 4) return halves(codes + step * BYTES);
    if constexpr (WIDE<BITS>) return columns_of(load_quad(codes + step / 2 * BYTES), step % 2);
    return load_quad(codes + step * BYTES);
  }
  PackedCodes after(int64_t quads) const { return {codes + quads * BYTES}; }
  // What a step of a usual group reads, AHEAD groups further on.
  void expect(int64_t step) const {
    const int64_t at = step * STEP<BITS> * BYTES / QUAD;
    if (at % 64 == 0) expect_read(codes + AHEAD * (USUAL / QUAD * BYTES) + at);
  }
};

template <int BITS>
struct UnpackedCodes {
  static constexpr int64_t BYTES = QUAD / STEP<BITS> * QUAD_BYTES;
  const uint8_t* codes;

  Quad get(int64_t step) const { return load_quad(codes + step * QUAD_BYTES); }
  UnpackedCodes after(int64_t quads) const { return {codes + quads * BYTES}; }
  void expect(int64_t) const {}
};

template <int BITS>
static void unpack(const uint8_t* codes, int64_t quads, uint8_t* out) {
  const PackedCodes<BITS> packed{codes};
  for (int64_t step = 0; step < quads * QUAD / STEP<BITS>; ++step, out += QUAD_BYTES) store_quad(out, packed.get(step));
}

// A panel's scales and offsets.
struct Factors {
  const void *scales, *offsets;  // [groups][16]
  bool half;

  static Factors of(const GroupedWeight& w, int64_t panel) {
    const int64_t first = panel * w.groups() * PANEL * (w.half ? 2 : 4);
    const auto at = [first](const void* base) { return static_cast<const uint8_t*>(base) + first; };
    return {at(w.scales), w.offsets ? at(w.offsets) : nullptr, w.half != 0};
  }
  Vec read(const void* base, int64_t g) const {
    return half ? load_half(static_cast<const uint16_t*>(base) + g * PANEL) : load(static_cast<const float*>(base) + g * PANEL);
  }
  template <bool OFFSETS>
  void expect(int64_t g) const {
    if (g % 2) return;  // two of halves share a line
    expect_read(static_cast<const uint8_t*>(scales) + g * PANEL * (half ? 2 : 4));
    if constexpr (OFFSETS) expect_read(static_cast<const uint8_t*>(offsets) + g * PANEL * (half ? 2 : 4));
  }
};

// The sums of `count` steps, at most RUN, for R rows; COUNT says at compile time how many, or is 0.
template <int BITS, int64_t COUNT, int R, class Codes>
static inline void run_of_steps(const Codes& codes, int64_t count, const InputCode<BITS>* const (&x)[R], Ints (&sums)[R]) {
  decltype(products(Quad(), x[0])) partial[R];
  const auto add_step = [&](int64_t step) {
    if constexpr (COUNT > 0 && R <= FEW) codes.expect(step);
    const Quad w = codes.get(step);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const InputCode<BITS>* input = x[r] + step * STEP<BITS>;
      partial[r] = step == 0 ? products(w, input) : add_products(partial[r], w, input);
    }
  };
  add_step(0);
  if constexpr (COUNT > 0) {
#pragma GCC unroll 16
    for (int64_t step = 1; step < COUNT; ++step) add_step(step);
  } else {
    for (int64_t step = 1; step < count; ++step) add_step(step);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sums[r] = widen(partial[r]);
}

// The same for any number of steps.
template <int BITS, int R, class Codes>
__attribute__((noinline)) static void all_steps(Codes codes, int64_t count, const InputCode<BITS>* const (&from)[R],
                                                Ints (&sums)[R]) {
  const InputCode<BITS>* x[R];
  for (int r = 0; r < R; ++r) x[r] = from[r], sums[r] = all(0);
  while (count > 0) {
    const int64_t some = count < RUN<BITS> ? count : RUN<BITS>;
    Ints more[R];
    run_of_steps<BITS, 0>(codes, some, x, more);
    for (int r = 0; r < R; ++r) sums[r] = plus(sums[r], more[r]), x[r] += some * STEP<BITS>;
    codes = codes.after(some * STEP<BITS> / QUAD);
    count -= some;
  }
}

// What becomes of a group's sums.
template <bool BIASED, bool OFFSETS>
struct Finish {
  const float *scales, *sums;  // of the tile's rows, in this group
  const int32_t* biases;
  Vec scale, offset;  // of the panel

  void add_to(float* out, int r, Ints sum) const {
    if constexpr (BIASED) sum = minus(sum, all(biases[r]));
    Vec acc = fma(to_float(sum), mul(scale, broadcast(scales[r])), load(out));
    if constexpr (OFFSETS) acc = fma(offset, broadcast(sums[r]), acc);
    store(out, acc);
  }
};

// R rows from `row` on times a panel: out[R][16], without bias. EVEN: every group has USUAL columns. On its own, or GCC
// would keep `out` in registers that there are not.
template <int BITS, int R, bool BIASED, bool OFFSETS, bool EVEN, class Codes>
__attribute__((noinline)) static void tile_of_groups(const GroupedWeight& w, const Factors& factors, Codes codes,
                                                     const Inputs& in, int64_t row, float* out) {
  using Code = InputCode<BITS>;
  const int64_t groups = w.groups();
  const Code* first = in.row<Code>(row);
  for (int r = 0; r < R; ++r) store(out + r * PANEL, zero());
  Finish<BIASED, OFFSETS> finish{in.scales + row, in.sums + row, in.biases + row, zero(), zero()};
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t quads = EVEN ? USUAL / QUAD : w.quads_of(g);
    asm("" : "+r"(first));  // or GCC would keep an address for each row and step, most of them in memory
    const Code* x[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) x[r] = in.next(first, r);
    Ints sums[R];
    if constexpr (EVEN) {
      if constexpr (R <= FEW) factors.template expect<OFFSETS>(g + 2 * AHEAD);
      run_of_steps<BITS, USUAL / STEP<BITS>>(codes, 0, x, sums);
    } else {
      all_steps<BITS>(codes, quads * QUAD / STEP<BITS>, x, sums);
    }
    finish.scale = factors.read(factors.scales, g);
    if constexpr (OFFSETS) finish.offset = factors.read(factors.offsets, g);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      finish.add_to(out + r * PANEL, r, sums[r]);
      asm volatile("" : : : "memory");  // one row after the other: registers are few
    }
    codes = codes.after(quads), first += quads * QUAD;
    finish.scales += in.rows, finish.sums += in.rows, finish.biases += in.rows;
  }
}

struct True {
  static constexpr bool value = true;
};
struct False {
  static constexpr bool value = false;
};

template <int BITS, int R, class Codes>
static void grouped_tile(const GroupedWeight& w, const Factors& factors, Codes codes, const Inputs& in, int64_t row,
                         float* out) {
  const bool even = w.group == USUAL && w.k % USUAL == 0, biased = w.code_bias != 0;
  const auto take = [&](auto is_biased, auto has_offsets) {
    constexpr bool BIASED = decltype(is_biased)::value, OFFSETS = decltype(has_offsets)::value;
    if (even) return tile_of_groups<BITS, R, BIASED, OFFSETS, true>(w, factors, codes, in, row, out);
    tile_of_groups<BITS, R, BIASED, OFFSETS, false>(w, factors, codes, in, row, out);
  };
  if (factors.offsets) return biased ? take(True(), True()) : take(False(), True());
  biased ? take(True(), False()) : take(False(), False());
}

}  // namespace HF_ISA
