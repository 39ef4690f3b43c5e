// Sixteen floats, the vector that all kernels are written in: two AVX2 registers, one of AVX-512, a plain array;
// and sixteen integers that become such.
//
// Every operation rounds the same way on every instruction set.
#pragma once

#include "isa.h"

#if HF_ISA_NUMBER == HF_PORTABLE
#include <cmath>
#include <cstring>
#else
#include <immintrin.h>
#endif

namespace HF_ISA {

constexpr int LANES = 16;

static inline int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

#if HF_ISA_NUMBER >= HF_AVX512

struct Vec {
  __m512 v;
};

static inline Vec zero() { return {_mm512_setzero_ps()}; }
static inline Vec broadcast(float a) { return {_mm512_set1_ps(a)}; }
static inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
static inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
// a * b + c, rounded once
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Vec load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

struct Ints {
  __m512i v;
};

static inline Ints all(int32_t i) { return {_mm512_set1_epi32(i)}; }
static inline Ints load_codes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline Ints low_half(Ints x) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(15))}; }
static inline Ints high_half(Ints x) { return {_mm512_srli_epi32(x.v, 4)}; }
static inline Ints minus(Ints x, Ints y) { return {_mm512_sub_epi32(x.v, y.v)}; }
static inline Vec to_float(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }

#elif HF_ISA_NUMBER == HF_AVX2

struct Vec {
  __m256 a, b;
};

static inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Vec broadcast(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
static inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
static inline Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
// x * y + z, rounded once
static inline Vec fma(Vec x, Vec y, Vec z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline Vec load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}

struct Ints {
  __m256i a, b;
};

static inline Ints all(int32_t i) {
  const __m256i v = _mm256_set1_epi32(i);
  return {v, v};
}
static inline __m256i load_eight(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline Ints load_codes(const uint8_t* p) { return {load_eight(p), load_eight(p + 8)}; }
static inline Ints low_half(Ints x) {
  const __m256i mask = _mm256_set1_epi32(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
static inline Ints high_half(Ints x) { return {_mm256_srli_epi32(x.a, 4), _mm256_srli_epi32(x.b, 4)}; }
static inline Ints minus(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
static inline Vec to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

#else

struct Vec {
  float v[LANES];
};

template <class F>
static inline Vec each(F f) {
  Vec r;
  for (int i = 0; i < LANES; ++i) r.v[i] = f(i);
  return r;
}

static inline Vec zero() { return each([](int) { return 0.0f; }); }
static inline Vec broadcast(float a) { return each([=](int) { return a; }); }
static inline Vec load(const float* p) { return each([=](int i) { return p[i]; }); }
static inline void store(float* p, const Vec& a) {
  for (int i = 0; i < LANES; ++i) p[i] = a.v[i];
}
static inline Vec add(const Vec& a, const Vec& b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
static inline Vec sub(const Vec& a, const Vec& b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
static inline Vec mul(const Vec& a, const Vec& b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
// a * b + c, rounded once
static inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// IEEE half to float by its bits; exact, subnormal numbers, infinities and NaN included.
static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, rest = h & 0x7fffu;
  uint32_t bits;
  if (rest >= 0x7c00u) {
    bits = 0x7f800000u | (rest & 0x3ffu) << 13;
  } else {
    // 2^112 moves the exponent; the product is exact and turns subnormal halves into normal floats
    bits = rest << 13;
    float scaled;
    std::memcpy(&scaled, &bits, 4);
    scaled *= 0x1p112f;
    std::memcpy(&bits, &scaled, 4);
  }
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
static inline Vec load_half(const uint16_t* p) { return each([=](int i) { return half_to_float(p[i]); }); }

struct Ints {
  int32_t v[LANES];
};

template <class F>
static inline Ints each_int(F f) {
  Ints r;
  for (int i = 0; i < LANES; ++i) r.v[i] = f(i);
  return r;
}

static inline Ints all(int32_t x) { return each_int([=](int) { return x; }); }
static inline Ints load_codes(const uint8_t* p) { return each_int([=](int i) { return int32_t(p[i]); }); }
static inline Ints low_half(const Ints& x) { return each_int([&](int i) { return x.v[i] & 15; }); }
static inline Ints high_half(const Ints& x) { return each_int([&](int i) { return x.v[i] >> 4; }); }
static inline Ints minus(const Ints& x, const Ints& y) { return each_int([&](int i) { return x.v[i] - y.v[i]; }); }
static inline Vec to_float(const Ints& x) { return each([&](int i) { return float(x.v[i]); }); }

#endif

// A line of the cache that is going to be written: asked for early, since a store that waits holds up those behind it.
static inline void expect_write(const void* p) { __builtin_prefetch(p, 1); }

// A line that is going to be read.
static inline void expect_read(const void* p) { __builtin_prefetch(p); }

// The first n lanes; the others are zero, and memory behind them is not touched.
static inline Vec load_some(const float* p, int n) {
  float lanes[LANES] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
static inline void store_some(float* p, Vec x, int n) {
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

}  // namespace HF_ISA
