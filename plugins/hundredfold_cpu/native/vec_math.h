// What norms, activations and softmax need beyond products: exponentials, bfloat16, parts of vectors, sums of lanes.
//
// The same steps on every instruction set, so the same bits.
#pragma once

#include "vec.h"

#if HF_ISA_NUMBER != HF_PORTABLE
#include <cstring>
#endif

namespace HF_ISA {

#if HF_ISA_NUMBER >= HF_AVX512

static inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// the second where either is NaN
static inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Vec negate(Vec a) {
  return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(int(0x80000000u))))};
}
// `a` where x < limit, else `b`
static inline Vec where_less(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), b.v, a.v)};
}
// a * 2^n for whole n in [-252, 254], rounded once
static inline Vec scale(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// p * 2^n for p around 1 and n in [-126, 126], told as n + 1.5 * 2^23
static inline Vec raise(Vec p, Vec n) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(n.v), 23)))};
}
static inline Vec swap_pairs(Vec a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
static inline Vec load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
// sixteen pairs: the first of each, the second of each
static inline void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
  const __m512i both = _mm512_loadu_si512(p);
  first = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
  second = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))))};
}
// a 256th of the e4m3 numbers; its NaN counts as 480
static inline Vec load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i half = _mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1);
  return {_mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16(int16_t(0xbf80))))};
}
static inline Vec load_e5m2(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(wide, 8))};
}
// Rounded to bfloat16, which are the upper halves: half to even, a NaN stays one.
static inline __m512i round_bf16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v), up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << 16));
  const __m512i rounded = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
static inline void store_rounded(uint16_t* p, Vec a) {
  const __m256i out = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(a), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), out);
}
#if HF_ISA_NUMBER < HF_AVX512AMX
static inline void store_bf16(uint16_t* p, Vec a) { store_rounded(p, a); }
#else
constexpr int SUBNORMAL = 0x20;  // a class of floats, which the instructions take for zero
static inline void store_bf16(uint16_t* p, Vec a) {
  if (__builtin_expect(_mm512_fpclass_ps_mask(a.v, SUBNORMAL), 0)) return store_rounded(p, a);
  const auto half = _mm512_cvtneps_pbh(a.v);
  std::memcpy(p, &half, sizeof half);
}
// thirty-two, `a` before `b`
static inline void store_bf16(uint16_t* p, Vec a, Vec b) {
  if (__builtin_expect(_mm512_fpclass_ps_mask(a.v, SUBNORMAL) | _mm512_fpclass_ps_mask(b.v, SUBNORMAL), 0)) {
    store_bf16(p, a), store_bf16(p + LANES, b);
  } else {
    const auto both = _mm512_cvtne2ps_pbh(b.v, a.v);
    std::memcpy(p, &both, sizeof both);
  }
}
#endif
// sixteen pairs, of the first and the second of each
static inline void store_bf16_pairs(uint16_t* p, Vec first, Vec second) {
  const __m512i low = _mm512_srli_epi32(round_bf16(first), 16);
  _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, low, round_bf16(second)));
}

#elif HF_ISA_NUMBER == HF_AVX2

static inline Vec div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
// the second where either is NaN
static inline Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline Vec negate(Vec x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}
// `y` where x < limit, else `z`
static inline Vec where_less(Vec x, Vec limit, Vec y, Vec z) {
  return {_mm256_blendv_ps(z.a, y.a, _mm256_cmp_ps(x.a, limit.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(z.b, y.b, _mm256_cmp_ps(x.b, limit.b, _CMP_LT_OQ))};
}
static inline __m256 scale8(__m256 a, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}
// x * 2^n for whole n in [-252, 254], in two exact steps but for the last rounding
static inline Vec scale(Vec x, Vec n) { return {scale8(x.a, n.a), scale8(x.b, n.b)}; }
static inline __m256 raise8(__m256 p, __m256 n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}
// p * 2^n for p around 1 and n in [-126, 126], told as n + 1.5 * 2^23
static inline Vec raise(Vec p, Vec n) { return {raise8(p.a, n.a), raise8(p.b, n.b)}; }
static inline Vec swap_pairs(Vec x) { return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)}; }
static inline __m256 load_bf16_8(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline Vec load_bf16(const uint16_t* p) { return {load_bf16_8(p), load_bf16_8(p + 8)}; }
// sixteen pairs: the first of each, the second of each
static inline void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + LANES));
  const __m256i mask = _mm256_set1_epi32(int(0xffff0000u));
  first = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  second = {_mm256_castsi256_ps(_mm256_and_si256(low, mask)), _mm256_castsi256_ps(_mm256_and_si256(high, mask))};
}
// a 256th of the e4m3 numbers; its NaN counts as 480
static inline Vec load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign_twice = _mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1);
  const __m256i half = _mm256_and_si256(sign_twice, _mm256_set1_epi16(int16_t(0xbf80)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
static inline Vec load_e5m2(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i half = _mm256_slli_epi16(wide, 8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
static inline __m256i bf16_8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
static inline void store_bf16(uint16_t* p, Vec x) {
  const __m256i packed = _mm256_packus_epi32(bf16_8(x.a), bf16_8(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
// sixteen pairs, of the first and the second of each
static inline void store_bf16_pairs(uint16_t* p, Vec first, Vec second) {
  const __m256i low = _mm256_or_si256(bf16_8(first.a), _mm256_slli_epi32(bf16_8(second.a), 16));
  const __m256i high = _mm256_or_si256(bf16_8(first.b), _mm256_slli_epi32(bf16_8(second.b), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + LANES), high);
}

#else

static inline uint32_t bits_of(float a) {
  uint32_t bits;
  std::memcpy(&bits, &a, 4);
  return bits;
}
static inline float float_of(uint32_t bits) {
  float a;
  std::memcpy(&a, &bits, 4);
  return a;
}
static inline Vec div(const Vec& a, const Vec& b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
// the second where either is NaN
static inline Vec max(const Vec& a, const Vec& b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
static inline Vec min(const Vec& a, const Vec& b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
static inline Vec negate(const Vec& a) { return each([&](int i) { return float_of(bits_of(a.v[i]) ^ 0x80000000u); }); }
// `a` where x < limit, else `b`
static inline Vec where_less(const Vec& x, const Vec& limit, const Vec& a, const Vec& b) {
  return each([&](int i) { return x.v[i] < limit.v[i] ? a.v[i] : b.v[i]; });
}
// a * 2^n for whole n in [-252, 254], in two exact steps but for the last rounding
static inline Vec scale(const Vec& a, const Vec& n) {
  return each([&](int i) {
    const int32_t whole = n.v[i] == n.v[i] ? int32_t(n.v[i]) : 0, half = whole >> 1;
    return a.v[i] * float_of(uint32_t(half + 127) << 23) * float_of(uint32_t(whole - half + 127) << 23);
  });
}
// p * 2^n for p around 1 and n in [-126, 126], told as n + 1.5 * 2^23
static inline Vec raise(const Vec& p, const Vec& n) {
  return each([&](int i) { return float_of(bits_of(p.v[i]) + (bits_of(n.v[i]) << 23)); });
}
static inline Vec swap_pairs(const Vec& a) { return each([&](int i) { return a.v[i ^ 1]; }); }
static inline Vec load_bf16(const uint16_t* p) { return each([=](int i) { return float_of(uint32_t(p[i]) << 16); }); }
// sixteen pairs: the first of each, the second of each
static inline void load_bf16_pairs(const uint16_t* p, Vec& first, Vec& second) {
  first = each([=](int i) { return float_of(uint32_t(p[2 * i]) << 16); });
  second = each([=](int i) { return float_of(uint32_t(p[2 * i + 1]) << 16); });
}
// a 256th of the e4m3 numbers; its NaN counts as 480
static inline Vec load_e4m3(const uint8_t* p) {
  return each([=](int i) { return half_to_float(uint16_t((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7)); });
}
static inline Vec load_e5m2(const uint8_t* p) { return each([=](int i) { return half_to_float(uint16_t(p[i] << 8)); }); }
static inline uint16_t to_bf16(float a) {
  const uint32_t bits = bits_of(a);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return uint16_t(nan ? bits >> 16 | 0x40 : (bits + (bits >> 16 & 1) + 0x7fffu) >> 16);
}
static inline void store_bf16(uint16_t* p, const Vec& a) {
  for (int i = 0; i < LANES; ++i) p[i] = to_bf16(a.v[i]);
}
// sixteen pairs, of the first and the second of each
static inline void store_bf16_pairs(uint16_t* p, const Vec& first, const Vec& second) {
  for (int i = 0; i < LANES; ++i) p[2 * i] = to_bf16(first.v[i]), p[2 * i + 1] = to_bf16(second.v[i]);
}

#endif

// Elements of a float32 or bfloat16 array, as floats.
static inline Vec get(const float* p) { return load(p); }
static inline Vec get(const uint16_t* p) { return load_bf16(p); }
static inline void put(float* p, const Vec& a) { store(p, a); }
static inline void put(uint16_t* p, const Vec& a) { store_bf16(p, a); }

// The first `count` of them; the other lanes are 0.
template <class T>
static inline Vec get_part(const T* p, int64_t count) {
  if (count >= LANES) return get(p);
  T part[LANES] = {};
  std::memcpy(part, p, size_t(count) * sizeof(T));
  return get(part);
}

template <class T>
static inline void put_part(T* p, const Vec& a, int64_t count) {
  if (count >= LANES) return put(p, a);
  T part[LANES];
  put(part, a);
  std::memcpy(p, part, size_t(count) * sizeof(T));
}

#if HF_ISA_NUMBER == HF_PORTABLE

// All lanes: halves are added until one is left.
static inline float sum(const Vec& a) {
  float lane[LANES];
  store(lane, a);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

static inline float largest(const Vec& a) {
  float most = a.v[0];
  for (int i = 1; i < LANES; ++i) most = a.v[i] > most ? a.v[i] : most;
  return most;
}

// The larger magnitude of each lane, as bits: NaN counts more than infinity, that more than numbers.
static inline Vec larger_magnitude(const Vec& a, const Vec& b) {
  return each([&](int i) {
    const uint32_t x = bits_of(a.v[i]) & 0x7fffffffu, y = bits_of(b.v[i]) & 0x7fffffffu;
    return float_of(x > y ? x : y);
  });
}

// Of lanes that `larger_magnitude` gave.
static inline float largest_magnitude(const Vec& a) {
  uint32_t most = 0;
  for (int i = 0; i < LANES; ++i) most = bits_of(a.v[i]) > most ? bits_of(a.v[i]) : most;
  return float_of(most);
}

#else

#if HF_ISA_NUMBER >= HF_AVX512
static inline __m256 low_lanes(Vec a) { return _mm512_castps512_ps256(a.v); }
static inline __m256 high_lanes(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }
// The larger magnitude of each lane, as bits: NaN counts more than infinity, that more than numbers.
static inline Vec larger_magnitude(Vec a, Vec b) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  const __m512i x = _mm512_and_si512(_mm512_castps_si512(a.v), mask), y = _mm512_and_si512(_mm512_castps_si512(b.v), mask);
  return {_mm512_castsi512_ps(_mm512_max_epu32(x, y))};
}
#else
static inline __m256 low_lanes(Vec a) { return a.a; }
static inline __m256 high_lanes(Vec a) { return a.b; }
static inline __m256 larger_magnitude8(__m256 a, __m256 b) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  const __m256i x = _mm256_and_si256(_mm256_castps_si256(a), mask), y = _mm256_and_si256(_mm256_castps_si256(b), mask);
  return _mm256_castsi256_ps(_mm256_max_epu32(x, y));
}
// The larger magnitude of each lane, as bits: NaN counts more than infinity, that more than numbers.
static inline Vec larger_magnitude(Vec a, Vec b) { return {larger_magnitude8(a.a, b.a), larger_magnitude8(a.b, b.b)}; }
#endif

// All lanes: halves are added until one is left.
static inline float sum(Vec a) {
  const __m256 eight = _mm256_add_ps(low_lanes(a), high_lanes(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float largest(Vec a) {
  const __m256 eight = _mm256_max_ps(low_lanes(a), high_lanes(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Of lanes that `larger_magnitude` gave.
static inline float largest_magnitude(Vec a) {
  const __m256i eight = _mm256_max_epu32(_mm256_castps_si256(low_lanes(a)), _mm256_castps_si256(high_lanes(a)));
  const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1))));
}

#endif

// e^x within 2 units in the last place: 0 below -87.33, where floats lose digits, infinity above 88.72, NaN of NaN.
static inline Vec exp(const Vec& x) {
  const Vec round = broadcast(12582912.0f), least = broadcast(-87.33f);  // 1.5 * 2^23: adding it leaves whole numbers
  const Vec kept = min(broadcast(89.0f), max(least, x));                 // x last: NaN stays
  const Vec n = sub(fma(kept, broadcast(1.44269504f), round), round);
  Vec r = fma(n, broadcast(-0.693359375f), kept);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = add(fma(mul(r, r), p, r), broadcast(1.0f));
  return where_less(x, least, zero(), scale(p, n));
}

// 1 / (1 + e^-x)
static inline Vec sigmoid(const Vec& x) {
  const Vec one = broadcast(1.0f);
  return div(one, add(one, exp(negate(x))));
}

}  // namespace HF_ISA
