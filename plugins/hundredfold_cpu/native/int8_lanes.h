// What the product of whole numbers needs of an instruction set: sixteen sums, a panel's weights, an input's codes.
#pragma once

#include <cstring>

#include "vec.h"
#include "weight.h"

namespace HF_ISA {

// Codes of the input, sixteen sums, and what is added to them: a panel's weights at STEP columns times an input's.
#if HF_ISA_NUMBER >= HF_AVX512VNNI

using Code = uint8_t;  // plus 128: the instruction wants one side unsigned, the correction takes it back
constexpr int STEP = 4, SHIFT = 128, ROWS = 12, PANELS = 2;
constexpr bool WIDENS = false;

struct Sum {
  __m512i v;
};
using Weights = Sum;
using Input = Sum;

static inline Sum load_sum(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline Vec to_float(Sum x) { return {_mm512_cvtepi32_ps(x.v)}; }
static inline Sum no_sum() { return {_mm512_setzero_si512()}; }
static inline Sum plus(Sum x, Sum y) { return {_mm512_add_epi32(x.v, y.v)}; }
static inline Weights from_codes(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline Weights from_wide(const int16_t*) { return {_mm512_setzero_si512()}; }  // never called
static inline void widen(const int8_t*, int16_t*) {}
static inline Input broadcast_input(const Code* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return {_mm512_set1_epi32(four)};
}
static inline Sum dot(Sum sum, Weights w, Input x) { return {_mm512_dpbusd_epi32(sum.v, x.v, w.v)}; }
static inline void store_inputs(Code* p, __m512i codes) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(codes, _mm512_set1_epi32(SHIFT)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

#elif HF_ISA_NUMBER == HF_AVX512

using Code = int16_t;
constexpr int STEP = 2, SHIFT = 0, ROWS = 12, PANELS = 2;
constexpr bool WIDENS = true;

struct Sum {
  __m512i v;
};
using Weights = Sum;
using Input = Sum;

static inline Sum load_sum(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline Vec to_float(Sum x) { return {_mm512_cvtepi32_ps(x.v)}; }
static inline Sum no_sum() { return {_mm512_setzero_si512()}; }
static inline Sum plus(Sum x, Sum y) { return {_mm512_add_epi32(x.v, y.v)}; }
static inline Weights from_codes(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline Weights from_wide(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void widen(const int8_t* p, int16_t* out) { _mm512_storeu_si512(out, from_codes(p).v); }
static inline Input broadcast_input(const Code* p) {
  int32_t two;
  std::memcpy(&two, p, 4);
  return {_mm512_set1_epi32(two)};
}
static inline Sum dot(Sum sum, Weights w, Input x) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(w.v, x.v))};
}
static inline void store_inputs(Code* p, __m512i codes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(codes));
}

#elif HF_ISA_NUMBER == HF_AVX2

using Code = int16_t;
constexpr int STEP = 2, SHIFT = 0, ROWS = 6, PANELS = 1;
constexpr bool WIDENS = true;

struct Sum {
  __m256i a, b;
};
using Weights = Sum;
struct Input {
  __m256i v;
};

static inline __m256i eight(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline Sum load_sum(const int32_t* p) { return {eight(p), eight(p + 8)}; }
static inline Vec to_float(Sum x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline Sum no_sum() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline Sum plus(Sum x, Sum y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline Weights from_codes(const int8_t* p) {
  const __m128i* codes = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(codes)), _mm256_cvtepi8_epi16(_mm_loadu_si128(codes + 1))};
}
static inline Weights from_wide(const int16_t* p) { return {eight(p), eight(p + 16)}; }
static inline void widen(const int8_t* p, int16_t* out) {
  const Weights w = from_codes(p);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), w.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 16), w.b);
}
static inline Input broadcast_input(const Code* p) {
  int32_t two;
  std::memcpy(&two, p, 4);
  return {_mm256_set1_epi32(two)};
}
static inline Sum dot(Sum sum, Weights w, Input x) {
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(w.a, x.v)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(w.b, x.v))};
}
static inline void store_inputs(Code* p, __m256i a, __m256i b) {
  const __m256i mixed = _mm256_packs_epi32(a, b);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}

#else

using Code = int16_t;
constexpr int STEP = 2, SHIFT = 0, ROWS = 4, PANELS = 1;
constexpr bool WIDENS = true;

struct Sum {
  int32_t v[PANEL];
};
struct Weights {
  int16_t v[PANEL * STEP];
};
struct Input {
  int16_t v[STEP];
};

static inline Sum load_sum(const int32_t* p) {
  Sum sum;
  for (int i = 0; i < PANEL; ++i) sum.v[i] = p[i];
  return sum;
}
static inline Vec to_float(const Sum& x) { return each([&](int i) { return float(x.v[i]); }); }
static inline Sum no_sum() { return {}; }
static inline Sum plus(const Sum& x, const Sum& y) {
  Sum sum;
  for (int i = 0; i < PANEL; ++i) sum.v[i] = x.v[i] + y.v[i];
  return sum;
}
static inline void widen(const int8_t* p, int16_t* out) {
  for (int i = 0; i < PANEL * STEP; ++i) out[i] = p[i];
}
static inline Weights from_codes(const int8_t* p) {
  Weights w;
  widen(p, w.v);
  return w;
}
static inline Weights from_wide(const int16_t* p) {
  Weights w;
  for (int i = 0; i < PANEL * STEP; ++i) w.v[i] = p[i];
  return w;
}
static inline Input broadcast_input(const Code* p) { return {{p[0], p[1]}}; }
static inline Sum dot(Sum sum, const Weights& w, const Input& x) {
  for (int i = 0; i < PANEL; ++i) {
    sum.v[i] += int32_t(w.v[STEP * i]) * x.v[0] + int32_t(w.v[STEP * i + 1]) * x.v[1];
  }
  return sum;
}

#endif

// The largest absolute value's bits: they order like the values, and what is not finite is at least INFINITE.
constexpr uint32_t INFINITE = 0x7f800000u;

// x[k], zero up to a multiple of 16, to codes of as many; `factor` times a value is at most 127 after rounding.
#if HF_ISA_NUMBER >= HF_AVX512

static inline uint32_t largest_bits(const float* x, int64_t k) {
  __m512i most = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t i = 0; i < k; i += LANES) {
    most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
  }
  return uint32_t(_mm512_reduce_max_epu32(most));
}
static inline void to_codes(const float* x, int64_t k, float factor, Code* codes) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < k; i += LANES) {
    store_inputs(codes + i, _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), by)));
  }
}

#elif HF_ISA_NUMBER == HF_AVX2

static inline uint32_t largest_bits(const float* x, int64_t k) {
  __m256i most = _mm256_setzero_si256();
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t i = 0; i < k; i += 8) most = _mm256_max_epu32(most, _mm256_and_si256(eight(x + i), magnitude));
  uint32_t lanes[8], found = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), most);
  for (uint32_t lane : lanes) found = lane > found ? lane : found;
  return found;
}
static inline void to_codes(const float* x, int64_t k, float factor, Code* codes) {
  const __m256 by = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < k; i += LANES) {
    store_inputs(codes + i, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), by)),
                 _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), by)));
  }
}

#else

static inline uint32_t largest_bits(const float* x, int64_t k) {
  uint32_t most = 0;
  for (int64_t i = 0; i < k; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most;
}
static inline void to_codes(const float* x, int64_t k, float factor, Code* codes) {
  constexpr float WHOLE = 12582912.0f;  // 1.5 * 2^23: added, it leaves no room for fractions; halves go to even
  for (int64_t i = 0; i < k; ++i) codes[i] = Code(x[i] * factor + WHOLE - WHOLE);
}

#endif

}  // namespace HF_ISA
