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

// A group of one row, with what is kept of it.
template <class Code, class T>
static inline void quantize_group(const GroupedWeight& w, const T* x, const Inputs& in, int64_t g, int64_t row) {
  const int64_t at = g * in.rows + row;
  int32_t sum;
  quantize_group(x + g * w.group, w.columns_of(g), in.row<Code>(row) + g * w.quads_of(0) * QUAD, in.scales + at, &sum);
  in.sums[at] = float(sum) * in.scales[at];
  in.biases[at] = sum * w.code_bias;
}

template <class Code, class T>
static void quantize_row(const GroupedWeight& w, const T* x, const Inputs& in, int64_t row) {
  for (int64_t g = 0; g < w.groups(); ++g) quantize_group<Code>(w, x, in, g, row);
}

constexpr int64_t BAND = 16;  // of rows, that are quantized together

#if HF_ISA_NUMBER >= HF_AVX512

struct Larger {
  static __m512i of(__m512i a, __m512i b) { return _mm512_max_epu32(a, b); }
};
struct Plus {
  static __m512i of(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
};

// Of sixteen vectors each one's lanes joined to one lane.
template <class Join>
static inline __m512i joined(const __m512i (&rows)[BAND]) {
  __m512i fours[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i *four = rows + 4 * i;
    const __m512i first = Join::of(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
    const __m512i second = Join::of(_mm512_unpacklo_epi32(four[2], four[3]), _mm512_unpackhi_epi32(four[2], four[3]));
    fours[i] = Join::of(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
  const auto quarters = [](__m512i a, __m512i b) {
    return Join::of(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  };
  return quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3]));
}

// A group of sixteen rows of bfloat16, of a multiple of 32 columns; ONCE: of 32.
template <bool ONCE>
static void quantize_band(const GroupedWeight& w, const uint16_t* x, int64_t x_stride, const Inputs& in, int64_t g,
                          int64_t first_row) {
  const int64_t columns = ONCE ? 2 * LANES : w.columns_of(g), at = g * in.rows + first_row, stride = in.stride;
  const uint16_t* group = x + g * w.group;
  int8_t* codes = in.row<int8_t>(first_row) + g * w.quads_of(0) * QUAD;
  __m512i each[BAND];
#pragma GCC unroll 16
  for (int64_t r = 0; r < BAND; ++r) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < columns; i += 2 * LANES) {
      const __m512i pairs = _mm512_and_si512(_mm512_loadu_si512(group + r * x_stride + i), _mm512_set1_epi32(0x7fff7fff));
      most = _mm512_max_epu32(most, _mm512_max_epu32(pairs, _mm512_slli_epi32(pairs, 16)));
    }
    each[r] = most;
  }
  const __m512i tops = _mm512_and_si512(joined<Larger>(each), _mm512_set1_epi32(0x7fff0000));
  if (_mm512_reduce_max_epi32(tops) >= 0x7f800000) {
    for (int64_t r = 0; r < BAND; ++r) quantize_group<int8_t>(w, x + r * x_stride, in, g, first_row + r);
    return;
  }
  const Vec top = {_mm512_castsi512_ps(tops)}, least = broadcast(SMALLEST), most = broadcast(LARGEST_CODE);
  const Vec scale = where_less(top, least, zero(), div(top, most));
  float ratios[BAND];
  store(ratios, where_less(top, least, zero(), div(most, top)));
#pragma GCC unroll 16
  for (int64_t r = 0; r < BAND; ++r) {
    const Vec ratio = broadcast(ratios[r]);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < columns; i += 2 * LANES) {
      Vec first, second;
      load_bf16_pairs(group + r * x_stride + i, first, second);
      const Ints low = nearest(mul(first, ratio)), high = nearest(mul(second, ratio));
      const __m512i words = _mm512_mask_blend_epi16(0xaaaaaaaau, low.v, _mm512_slli_epi32(high.v, 16));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + r * stride + i), _mm512_cvtepi16_epi8(words));
    }
    each[r] = sum;
  }
  const Ints sums = {joined<Plus>(each)};
  store(in.scales + at, scale);
  store(in.sums + at, mul(to_float(sums), scale));
  _mm512_storeu_si512(in.biases + at, _mm512_mullo_epi32(sums.v, _mm512_set1_epi32(w.code_bias)));
}

static void quantize_band(const GroupedWeight& w, const uint16_t* x, int64_t x_stride, const Inputs& in, int64_t first_row) {
  const bool once = w.group == 2 * LANES;
  for (int64_t g = 0; g < w.groups(); ++g) {
    if (once)
      quantize_band<true>(w, x, x_stride, in, g, first_row);
    else
      quantize_band<false>(w, x, x_stride, in, g, first_row);
  }
}

static inline bool fits_bands(const GroupedWeight& w) { return w.group % (2 * LANES) == 0 && w.k % (2 * LANES) == 0; }

#endif

// Up to BAND rows; a group of all of them at once, where registers are wide and groups fill them.
template <class Code, class T>
static void quantize_rows(const GroupedWeight& w, const T* x, int64_t x_stride, const Inputs& in, int64_t first, int64_t rows) {
#if HF_ISA_NUMBER >= HF_AVX512
  if constexpr (sizeof(T) == sizeof(uint16_t) && sizeof(Code) == sizeof(int8_t)) {
    if (rows == BAND && fits_bands(w)) return quantize_band(w, x + first * x_stride, x_stride, in, first);
  }
#endif
  for (int64_t row = first; row < first + rows; ++row) quantize_row<Code>(w, x + row * x_stride, in, row);
}

}  // namespace HF_ISA
