// Products of small integers, summed exactly in 32 bits: int8 codes times int16 numbers.
//
// Sums of integers have no order, so every instruction set and every way to cut the work gives the same.
#pragma once

#include "vec_math.h"

#if HF_ISA_NUMBER == HF_PORTABLE
#include <cstring>
#endif

namespace HF_ISA {

// Sixteen lanes of two int16 numbers each.
#if HF_ISA_NUMBER >= HF_AVX512

struct Pairs {
  __m512i v;
};

// 32 codes, two for each lane
static inline Pairs load_pairs(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// the same two numbers for every lane
static inline Pairs broadcast_pair(const int16_t* p) {
  int32_t both;
  __builtin_memcpy(&both, p, 4);
  return {_mm512_set1_epi32(both)};
}
// adds to every lane the products of its two numbers
static inline Ints dot(Ints sum, Pairs x, Pairs y) {
#if HF_ISA_NUMBER >= HF_AVX512VNNI
  return {_mm512_dpwssd_epi32(sum.v, x.v, y.v)};
#else
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(x.v, y.v))};
#endif
}
// rounds half to even; all have to fit
static inline void store_int16(int16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x.v)));
}

#elif HF_ISA_NUMBER == HF_AVX2

struct Pairs {
  __m256i a, b;
};

// 32 codes, two for each lane
static inline Pairs load_pairs(const int8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
// the same two numbers for every lane
static inline Pairs broadcast_pair(const int16_t* p) {
  int32_t both;
  __builtin_memcpy(&both, p, 4);
  const __m256i v = _mm256_set1_epi32(both);
  return {v, v};
}
// adds to every lane the products of its two numbers
static inline Ints dot(Ints sum, Pairs x, Pairs y) {
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(x.b, y.b))};
}
// rounds half to even; all have to fit
static inline void store_int16(int16_t* p, Vec x) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else

struct Pairs {
  int32_t a[LANES], b[LANES];
};

// 32 codes, two for each lane
static inline Pairs load_pairs(const int8_t* p) {
  Pairs r;
  for (int i = 0; i < LANES; ++i) r.a[i] = p[2 * i], r.b[i] = p[2 * i + 1];
  return r;
}
// the same two numbers for every lane
static inline Pairs broadcast_pair(const int16_t* p) {
  Pairs r;
  for (int i = 0; i < LANES; ++i) r.a[i] = p[0], r.b[i] = p[1];
  return r;
}
// adds to every lane the products of its two numbers
static inline Ints dot(const Ints& sum, const Pairs& x, const Pairs& y) {
  return each_int([&](int i) { return sum.v[i] + x.a[i] * y.a[i] + x.b[i] * y.b[i]; });
}
// rounds half to even; all have to fit
static inline void store_int16(int16_t* p, const Vec& x) {
  const float whole = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
  for (int i = 0; i < LANES; ++i) {
    const float rounded = (x.v[i] + whole) - whole;
    p[i] = int16_t(rounded == rounded ? rounded : 0.0f);
  }
}

#endif

}  // namespace HF_ISA
