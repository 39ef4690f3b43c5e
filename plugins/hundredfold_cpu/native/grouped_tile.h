// The heart of the integer products: some rows of input times a panel, the sums of a group in registers.
//
// Sums of integers are exact. Groups become floats in ascending order, one chain of fused multiply-adds an output.
#pragma once

#include "inputs.h"

namespace HF_ISA {

// Quads of a group of 32 columns, the size that most formats have.
constexpr int USUAL = 8;
static_assert(USUAL <= RUN);

// Where a tile finds the codes of a panel: packed as they lie in memory, or unpacked by `unpack`.
template <int BITS>
struct PackedCodes {
  static constexpr int BYTES = QUAD_BYTES * BITS / 8;
  const uint8_t* codes;

  Quad get(int64_t quad, [[maybe_unused]] int layer) const {
    const uint8_t* p = codes + quad * BYTES;
    if constexpr (BITS == 4) return halves(p);
    return LAYERS<BITS> == 2 ? layer_of(load_quad(p), layer) : load_quad(p);
  }
  PackedCodes from(int64_t quad) const { return {codes + quad * BYTES}; }
};

template <int BITS>
struct UnpackedCodes {
  static constexpr int BYTES = QUAD_BYTES * LAYERS<BITS>;
  const uint8_t* codes;

  Quad get(int64_t quad, int layer) const { return load_quad(codes + quad * BYTES + layer * QUAD_BYTES); }
  UnpackedCodes from(int64_t quad) const { return {codes + quad * BYTES}; }
};

template <int BITS>
static void unpack(const uint8_t* codes, int64_t quads, uint8_t* out) {
  const PackedCodes<BITS> packed{codes};
  for (int64_t quad = 0; quad < quads; ++quad) {
    for (int layer = 0; layer < LAYERS<BITS>; ++layer, out += QUAD_BYTES) store_quad(out, packed.get(quad, layer));
  }
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
};

// The sums of `count` quads, at most RUN, for R rows; COUNT says at compile time how many, or is 0.
template <int BITS, int COUNT, int R, class Codes>
static inline void run_of_quads(const Codes& codes, int64_t count, const int8_t* x, int64_t stride, Ints (&sums)[R]) {
  // Layer after layer, so that registers hold the sums of one.
#pragma GCC unroll 2
  for (int layer = 0; layer < LAYERS<BITS>; ++layer) {
    Partial partial[R];
    const auto add_quad = [&](int64_t quad) {
      const Quad w = codes.get(quad, layer);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const int8_t* input = x + r * stride + quad * QUAD;
        partial[r] = quad == 0 ? products(w, input) : add_products(partial[r], w, input);
      }
    };
    add_quad(0);
    if constexpr (COUNT > 0) {
#pragma GCC unroll 16
      for (int quad = 1; quad < COUNT; ++quad) add_quad(quad);
    } else {
      for (int64_t quad = 1; quad < count; ++quad) add_quad(quad);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sums[r] = layer ? plus(sums[r], times_16(widen(partial[r]))) : widen(partial[r]);
      if (layer + 1 < LAYERS<BITS>) asm volatile("" : "+m"(sums[r]));  // the next layer needs its register
    }
  }
}

// The same for any number of quads.
template <int BITS, int R, class Codes>
__attribute__((noinline)) static void all_quads(Codes codes, int64_t count, const int8_t* x, int64_t stride,
                                                Ints (&sums)[R]) {
  for (int r = 0; r < R; ++r) sums[r] = all(0);
  while (count > 0) {
    const int64_t some = count < RUN ? count : RUN;
    Ints more[R];
    run_of_quads<BITS, 0>(codes, some, x, stride, more);
    for (int r = 0; r < R; ++r) sums[r] = plus(sums[r], more[r]);
    codes = codes.from(some);
    x += some * QUAD;
    count -= some;
  }
}

// R rows from `row` on times a panel: out[R][16], without bias.
template <int BITS, int R, class Codes>
static void grouped_tile(const GroupedWeight& w, const Factors& factors, Codes codes, const Inputs& in, int64_t row,
                         float* out) {
  const int8_t* x = in.codes + row * in.stride;
  const int64_t stride = in.stride, rows = in.rows, groups = w.groups();
  const float *scales = in.scales + row, *input_sums = in.sums + row;
  const int32_t* biases = w.code_bias != 0 ? in.biases + row : nullptr;
  for (int r = 0; r < R; ++r) store(out + r * PANEL, zero());
  for (int64_t g = 0; g < groups; ++g, scales += rows, input_sums += rows) {
    const int64_t count = w.quads_of(g);
    Ints sums[R];
    if (count == USUAL) {
      run_of_quads<BITS, USUAL>(codes, count, x, stride, sums);
    } else {
      all_quads<BITS>(codes, count, x, stride, sums);
    }
    codes = codes.from(count);
    x += count * QUAD;
    if (biases) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sums[r] = minus(sums[r], all(biases[g * rows + r]));
    }
    const Vec scale = factors.read(factors.scales, g);
    const auto add_group = [&](int r) {
      return fma(to_float(sums[r]), mul(scale, broadcast(scales[r])), load(out + r * PANEL));
    };
    if (factors.offsets) {
      const Vec offset = factors.read(factors.offsets, g);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) store(out + r * PANEL, fma(offset, broadcast(input_sums[r]), add_group(r)));
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) store(out + r * PANEL, add_group(r));
    }
  }
}

}  // namespace HF_ISA
