// Products of small integers, summed exactly in 32 bits: codes of 8 and 4 bits times int16 numbers.
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
// 32 codes of 4 bits: the low halves of 16 bytes are two for each of the first eight lanes
static inline Pairs load_nibbles(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i low = _mm256_and_si256(wide, _mm256_set1_epi16(15)), high = _mm256_srli_epi16(wide, 4);
  return {_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
}
// 64 codes of 4 bits: the low and the high halves of 32 bytes, two for each lane
static inline void load_nibbles(const uint8_t* p, Pairs& low, Pairs& high) {
  const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  low = {_mm512_and_si512(wide, _mm512_set1_epi16(15))}, high = {_mm512_srli_epi16(wide, 4)};
}
// sixteen codes to every second place; what lies between is not touched
static inline void spread(const int8_t* codes, int8_t* to) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  _mm256_mask_storeu_epi8(to, 0x55555555u, wide);
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
// 32 codes of 4 bits: the low halves of 16 bytes are two for each of the first eight lanes
static inline Pairs load_nibbles(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_and_si256(wide, _mm256_set1_epi16(15)), _mm256_srli_epi16(wide, 4)};
}
// 64 codes of 4 bits: the low and the high halves of 32 bytes, two for each lane
static inline void load_nibbles(const uint8_t* p, Pairs& low, Pairs& high) {
  const __m256i mask = _mm256_set1_epi16(15);
  const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)));
  low = {_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)};
  high = {_mm256_srli_epi16(a, 4), _mm256_srli_epi16(b, 4)};
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
// 32 codes of 4 bits: the low halves of 16 bytes are two for each of the first eight lanes
static inline Pairs load_nibbles(const uint8_t* p) {
  Pairs r;
  for (int i = 0; i < LANES / 2; ++i) {
    r.a[i] = p[2 * i] & 15, r.b[i] = p[2 * i + 1] & 15;
    r.a[i + LANES / 2] = p[2 * i] >> 4, r.b[i + LANES / 2] = p[2 * i + 1] >> 4;
  }
  return r;
}
// 64 codes of 4 bits: the low and the high halves of 32 bytes, two for each lane
static inline void load_nibbles(const uint8_t* p, Pairs& low, Pairs& high) {
  for (int i = 0; i < LANES; ++i) {
    low.a[i] = p[2 * i] & 15, low.b[i] = p[2 * i + 1] & 15;
    high.a[i] = p[2 * i] >> 4, high.b[i] = p[2 * i + 1] >> 4;
  }
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

#if HF_ISA_NUMBER < HF_AVX512
// sixteen codes to every second place; what lies between is not touched
static inline void spread(const int8_t* codes, int8_t* to) {
  for (int i = 0; i < LANES; ++i) to[2 * i] = codes[i];
}
#endif

}  // namespace HF_ISA
