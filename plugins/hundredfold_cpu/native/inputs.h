// Rows of input as int8, a scale for each group: what `quantize_rows` of hundredfold.plugin.integer gives.
#pragma once

#include "quads.h"

namespace HF_ISA {

// Codes lie row by row, in bytes or in 16 bits; a group's are filled up with zeros to whole quads.
struct Inputs {
  uint8_t* codes;
  int64_t stride;  // bytes of a row
  int64_t rows;
  float* scales;    // [groups][rows]
  float* sums;      // [groups][rows]: the sum of codes, times the scale
  int32_t* biases;  // [groups][rows]: the sum of codes, times the weight's code_bias

  // Bytes of a row: codes are written sixteen at a time, and rows should not share a line of the cache.
  static int64_t stride_for(const GroupedWeight& w, size_t code) {
    return (int64_t(code) * (w.quads() * QUAD + LANES) + 63) / 64 * 64;
  }
  static size_t bytes(const GroupedWeight& w, size_t code, int64_t rows) {
    return size_t(rows) * size_t(stride_for(w, code) + w.groups() * 12);
  }
  static Inputs in(void* memory, const GroupedWeight& w, size_t code, int64_t rows) {
    Inputs in;
    in.codes = static_cast<uint8_t*>(memory);
    in.stride = stride_for(w, code);
    in.rows = rows;
    in.scales = reinterpret_cast<float*>(in.codes + rows * in.stride);
    in.sums = in.scales + rows * w.groups();
    in.biases = reinterpret_cast<int32_t*>(in.sums + rows * w.groups());
    return in;
  }
  template <class Code>
  Code* row(int64_t row) const {
    return reinterpret_cast<Code*>(codes + row * stride);
  }
  // A row that is not there.
  void leave_out(const GroupedWeight& w, int64_t row) const {
    for (int64_t at = row; at < w.groups() * rows; at += rows) scales[at] = sums[at] = 0, biases[at] = 0;
  }
  // What lies `rows` rows after p.
  template <class Code>
  const Code* next(const Code* p, int64_t rows) const {
    return reinterpret_cast<const Code*>(reinterpret_cast<const uint8_t*>(p) + rows * stride);
  }
};

static inline float float_from(int32_t bits) {
  float a;
  std::memcpy(&a, &bits, 4);
  return a;
}

constexpr float LARGEST_CODE = 127, SMALLEST = 0x1p-96f;

// One group of one row.
template <class T, class Code>
static inline void quantize_group(const T* x, int64_t columns, Code* codes, float* scale, int32_t* sum) {
  Ints most = all(0);
  for (int64_t i = 0; i < columns; i += LANES) most = larger(most, magnitude(get_part(x + i, columns - i)));
  // Compared by their bits, so that NaN is larger than any number.
  const float top = float_from(largest(most));
  const bool finite = top < __builtin_inff(), used = finite && top >= SMALLEST;
  *scale = used ? top / LARGEST_CODE : finite ? 0.0f : __builtin_nanf("");
  const Vec ratio = broadcast(used ? LARGEST_CODE / top : 0.0f);
  Ints sums = all(0);
  for (int64_t i = 0; i < columns; i += LANES) {
    const Ints code = used ? nearest(mul(get_part(x + i, columns - i), ratio)) : all(0);
    sums = plus(sums, code);
    store_codes(codes + i, code);
  }
  *sum = total(sums);
}

template <class Code, class T>
static void quantize_row(const GroupedWeight& w, const T* x, const Inputs& in, int64_t row) {
  Code* codes = in.row<Code>(row);
  const int64_t groups = w.groups();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = g * in.rows + row;
    int32_t sum;
    quantize_group(x + g * w.group, w.columns_of(g), codes, in.scales + at, &sum);
    in.sums[at] = float(sum) * in.scales[at];
    in.biases[at] = sum * w.code_bias;
    codes += w.quads_of(g) * QUAD;
  }
}

}  // namespace HF_ISA
