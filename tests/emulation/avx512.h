// The AVX-512 and VNNI intrinsics that the kernels use, as loops over lanes, by Intel's description of each.
//
// Given to the compiler with -include and without -mavx512f: the kernels' own sources then run on any processor. What the
// compiler makes of the real instructions is not seen so; bochs.py sees that.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace emulated {

template <class T>
struct Lanes {
  static constexpr int COUNT = 64 / int(sizeof(T));
  T v[COUNT];

  template <class V>
  static Lanes of(const V& x) {
    static_assert(sizeof(V) <= 64);
    Lanes r = {};
    __builtin_memcpy(&r, &x, sizeof x);
    return r;
  }
  template <class F>
  static Lanes each(F f) {
    Lanes r;
    for (int i = 0; i < COUNT; ++i) r.v[i] = T(f(i));
    return r;
  }
  template <class V>
  V as() const {
    V x;
    static_assert(sizeof(V) <= 64);
    __builtin_memcpy(&x, v, sizeof x);
    return x;
  }
  operator __m512i() const { return as<__m512i>(); }
  operator __m512() const { return as<__m512>(); }
};

template <class T, class V>
inline Lanes<T> lanes(const V& x) {
  return Lanes<T>::of(x);
}

using F = Lanes<float>;
using I = Lanes<int32_t>;
using U = Lanes<uint32_t>;
using W = Lanes<int16_t>;
using B = Lanes<int8_t>;
using UB = Lanes<uint8_t>;
using Mask = uint16_t;

inline int32_t wrapped(int64_t x) { return int32_t(uint32_t(x)); }
inline int16_t saturated(int32_t x) { return int16_t(x > INT16_MAX ? INT16_MAX : x < INT16_MIN ? INT16_MIN : x); }
inline int32_t rounded(float x) {
  const float whole = __builtin_nearbyintf(x);
  return whole >= -0x1p31f && whole < 0x1p31f ? int32_t(whole) : INT32_MIN;
}

template <class T, class V, class Op>
inline Lanes<T> pairwise(const V& a, const V& b, Op op) {
  const Lanes<T> x = lanes<T>(a), y = lanes<T>(b);
  return Lanes<T>::each([&](int i) { return op(x.v[i], y.v[i]); });
}
template <class T, class From, class V, class Op>
inline Lanes<T> mapped(const V& a, Op op) {
  const Lanes<From> x = lanes<From>(a);
  return Lanes<T>::each([&](int i) { return op(x.v[i]); });
}

inline __m512 permute_ps(__m512 a, int by) {
  const F x = lanes<float>(a);
  return F::each([&](int i) { return x.v[i / 4 * 4 + (by >> 2 * (i % 4) & 3)]; });
}
inline __m512 shuffle_f32x4(__m512 a, __m512 b, int by) {
  const F x = lanes<float>(a), y = lanes<float>(b);
  return F::each([&](int i) { return (i < 8 ? x : y).v[(by >> 2 * (i / 4) & 3) * 4 + i % 4]; });
}
inline __m512i shuffle_epi8(__m512i a, __m512i by) {
  const UB x = lanes<uint8_t>(a), y = lanes<uint8_t>(by);
  return UB::each([&](int i) { return y.v[i] & 0x80 ? 0 : x.v[i / 16 * 16 + y.v[i] % 16]; });
}
inline __m512i madd_epi16(__m512i a, __m512i b) {
  const W x = lanes<int16_t>(a), y = lanes<int16_t>(b);
  return I::each([&](int i) {
    return wrapped(int64_t(x.v[2 * i]) * y.v[2 * i] + int64_t(x.v[2 * i + 1]) * y.v[2 * i + 1]);
  });
}
inline __m512i maddubs_epi16(__m512i a, __m512i b) {
  const UB x = lanes<uint8_t>(a);
  const B y = lanes<int8_t>(b);
  return W::each([&](int i) { return saturated(x.v[2 * i] * y.v[2 * i] + x.v[2 * i + 1] * y.v[2 * i + 1]); });
}
inline __m512i dpbusd(__m512i sum, __m512i a, __m512i b) {
  const I from = lanes<int32_t>(sum);
  const UB x = lanes<uint8_t>(a);
  const B y = lanes<int8_t>(b);
  return I::each([&](int i) {
    int64_t total = from.v[i];
    for (int j = 4 * i; j < 4 * i + 4; ++j) total += x.v[j] * y.v[j];
    return wrapped(total);
  });
}
inline __m512i dpwssd(__m512i sum, __m512i a, __m512i b) {
  return pairwise<int32_t>(sum, madd_epi16(a, b), [](int64_t x, int64_t y) { return wrapped(x + y); });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const F x = lanes<float>(a), y = lanes<float>(b), z = lanes<float>(c);
  return F::each([&](int i) { return __builtin_fmaf(x.v[i], y.v[i], z.v[i]); });
}
inline void mask_storeu_epi8(void* p, uint32_t mask, __m256i a) {
  char bytes[32];
  __builtin_memcpy(bytes, &a, sizeof bytes);
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) static_cast<char*>(p)[i] = bytes[i];
}
template <int HOW>
inline Mask compare(__m512 a, __m512 b) {
  static_assert(HOW == _CMP_LT_OQ || HOW == _CMP_UNORD_Q);
  const F x = lanes<float>(a), y = lanes<float>(b);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i)
    mask |= unsigned(HOW == _CMP_LT_OQ ? x.v[i] < y.v[i] : x.v[i] != x.v[i] || y.v[i] != y.v[i]) << i;
  return Mask(mask);
}
template <class V>
inline V blend(Mask mask, V a, V b) {
  const U x = lanes<uint32_t>(a), y = lanes<uint32_t>(b);
  return U::each([&](int i) { return (mask >> i & 1 ? y : x).v[i]; });
}
// Those of the classes OF, of which subnormal numbers are known.
template <int OF>
inline Mask classify(__m512 a) {
  static_assert(OF == 0x20);
  const U bits = lanes<uint32_t>(a);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= unsigned(!(bits.v[i] & 0x7f800000u) && bits.v[i] & 0x7fffffu) << i;
  return Mask(mask);
}
// b before a; no subnormal number is among them.
inline __m512i to_bf16(__m512 a, __m512 b) {
  const U x = lanes<uint32_t>(b), y = lanes<uint32_t>(a);
  return Lanes<uint16_t>::each([&](int i) {
    const uint32_t bits = i < 16 ? x.v[i] : y.v[i - 16];
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return uint16_t(nan ? bits >> 16 | 0x40 : (bits + (bits >> 16 & 1) + 0x7fffu) >> 16);
  });
}
inline __m512i inserti64x4(__m512i a, __m256i b, int at) {
  __m512i r = a;
  __builtin_memcpy(reinterpret_cast<char*>(&r) + 32 * at, &b, 32);
  return r;
}
inline __m256 extractf32x8(__m512 a, int at) {
  __m256 r;
  __builtin_memcpy(&r, reinterpret_cast<const char*>(&a) + 32 * at, 32);
  return r;
}
// Interleaves the lower or the upper half of every 128 bits.
template <class T>
inline __m512i unpack(__m512i a, __m512i b, bool upper) {
  constexpr int PART = 16 / int(sizeof(T)), HALF = PART / 2;
  const Lanes<T> x = lanes<T>(a), y = lanes<T>(b);
  return Lanes<T>::each([&](int i) { return (i % 2 ? y : x).v[i / PART * PART + (upper ? HALF : 0) + i % PART / 2]; });
}
inline __m512i shuffle_i32x4(__m512i a, __m512i b, int by) {
  const I x = lanes<int32_t>(a), y = lanes<int32_t>(b);
  return I::each([&](int i) { return (i < 8 ? x : y).v[(by >> 2 * (i / 4) & 3) * 4 + i % 4]; });
}
inline Mask test(__m512i a, __m512i b) {
  const U x = lanes<uint32_t>(a), y = lanes<uint32_t>(b);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= unsigned((x.v[i] & y.v[i]) != 0) << i;
  return Mask(mask);
}
inline __m512i blend_words(uint32_t mask, __m512i a, __m512i b) {
  const W x = lanes<int16_t>(a), y = lanes<int16_t>(b);
  return W::each([&](int i) { return (mask >> i & 1 ? y : x).v[i]; });
}
inline __m256i words_to_bytes(__m512i a) {
  const W x = lanes<int16_t>(a);
  return B::each([&](int i) { return i < 32 ? x.v[i] : 0; }).as<__m256i>();
}
inline __m512 scalef(__m512 a, __m512 by) {
  return pairwise<float>(a, by, [](float x, float n) {
    return n == n ? float(__builtin_ldexp(double(x), int(__builtin_floorf(n)))) : x + n;
  });
}
inline __m512i broadcast_i32x4(__m128i a) {
  const I x = lanes<int32_t>(a);
  return I::each([&](int i) { return x.v[i % 4]; });
}
template <class V>
inline V read(const void* p) {
  V x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
template <class V>
inline void write(void* p, const V& x) {
  __builtin_memcpy(p, &x, sizeof x);
}
template <class T, class V, class Op>
inline T reduced(const V& a, Op op) {
  const Lanes<T> x = lanes<T>(a);
  T r = x.v[0];
  for (int i = 1; i < 16; ++i) r = op(r, x.v[i]);
  return r;
}
inline __m512 half_to_float(__m256i a) {
  __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
  return read<__m512>(parts);
}

}  // namespace emulated

#define _mm512_setzero_ps() __m512(emulated::F::each([](int) { return 0.0f; }))
#define _mm512_setzero_si512() __m512i(emulated::I::each([](int) { return 0; }))
#define _mm512_set1_ps(a) __m512(emulated::F::each([&](int) { return a; }))
#define _mm512_set1_epi32(a) __m512i(emulated::I::each([&](int) { return a; }))
#define _mm512_set1_epi16(a) __m512i(emulated::W::each([&](int) { return a; }))
#define _mm512_set1_epi8(a) __m512i(emulated::B::each([&](int) { return a; }))
#define _mm512_loadu_ps(p) emulated::read<__m512>(p)
#define _mm512_loadu_si512(p) emulated::read<__m512i>(p)
#define _mm512_storeu_ps(p, a) emulated::write<__m512>(p, a)
#define _mm512_storeu_si512(p, a) emulated::write<__m512i>(p, a)
#define _mm512_stream_si512(p, a) emulated::write<__m512i>(p, a)
#define _mm512_castps_si512(a) emulated::lanes<float>(a).as<__m512i>()
#define _mm512_castsi512_ps(a) emulated::lanes<float>(a).as<__m512>()
#define _mm512_castsi256_si512(a) emulated::lanes<int32_t>(a).as<__m512i>()
#define _mm512_castps512_ps256(a) emulated::extractf32x8(a, 0)
#define _mm512_extractf32x8_ps(a, at) emulated::extractf32x8(a, at)
#define _mm512_inserti64x4(a, b, at) emulated::inserti64x4(a, b, at)
#define _mm512_broadcast_i32x4(a) emulated::broadcast_i32x4(a)
#define _mm512_add_ps(a, b) __m512(emulated::pairwise<float>(a, b, [](float x, float y) { return x + y; }))
#define _mm512_sub_ps(a, b) __m512(emulated::pairwise<float>(a, b, [](float x, float y) { return x - y; }))
#define _mm512_mul_ps(a, b) __m512(emulated::pairwise<float>(a, b, [](float x, float y) { return x * y; }))
#define _mm512_div_ps(a, b) __m512(emulated::pairwise<float>(a, b, [](float x, float y) { return x / y; }))
#define _mm512_max_ps(a, b) __m512(emulated::pairwise<float>(a, b, [](float x, float y) { return x > y ? x : y; }))
#define _mm512_min_ps(a, b) __m512(emulated::pairwise<float>(a, b, [](float x, float y) { return x < y ? x : y; }))
#define _mm512_fmadd_ps(a, b, c) emulated::fmadd_ps(a, b, c)
#define _mm256_mask_storeu_epi8(p, mask, a) emulated::mask_storeu_epi8(p, mask, a)
#define HF_INTEGERS(T, a, b, op) __m512i(emulated::pairwise<T>(a, b, [](T x, T y) { return op; }))
#define _mm512_add_epi32(a, b) HF_INTEGERS(uint32_t, a, b, x + y)
#define _mm512_sub_epi32(a, b) HF_INTEGERS(uint32_t, a, b, x - y)
#define _mm512_mullo_epi32(a, b) HF_INTEGERS(uint32_t, a, b, x * y)
#define _mm512_add_epi16(a, b) HF_INTEGERS(uint16_t, a, b, x + y)
#define _mm512_and_si512(a, b) HF_INTEGERS(uint32_t, a, b, x & y)
#define _mm512_or_si512(a, b) HF_INTEGERS(uint32_t, a, b, x | y)
#define _mm512_xor_si512(a, b) HF_INTEGERS(uint32_t, a, b, x ^ y)
#define _mm512_max_epi32(a, b) HF_INTEGERS(int32_t, a, b, x > y ? x : y)
#define _mm512_max_epu32(a, b) HF_INTEGERS(uint32_t, a, b, x > y ? x : y)
#define _mm512_slli_epi32(a, n) __m512i(emulated::mapped<uint32_t, uint32_t>(a, [&](uint32_t x) { return x << n; }))
#define _mm512_srli_epi32(a, n) __m512i(emulated::mapped<uint32_t, uint32_t>(a, [&](uint32_t x) { return x >> n; }))
#define _mm512_srli_epi16(a, n) __m512i(emulated::mapped<uint16_t, uint16_t>(a, [&](uint16_t x) { return x >> n; }))
#define _mm512_srai_epi32(a, n) __m512i(emulated::mapped<int32_t, int32_t>(a, [&](int32_t x) { return x >> n; }))
#define _mm512_cvtepi32_ps(a) __m512(emulated::mapped<float, int32_t>(a, [](int32_t x) { return float(x); }))
#define _mm512_cvtps_epi32(a) __m512i(emulated::mapped<int32_t, float>(a, emulated::rounded))
#define _mm512_cvtph_ps(a) emulated::half_to_float(a)
#define HF_WIDENED(to, from, a) \
  __m512i(emulated::Lanes<to>::each([wide = emulated::lanes<from>(a)](int i) { return wide.v[i]; }))
#define _mm512_cvtepu8_epi32(a) HF_WIDENED(int32_t, uint8_t, a)
#define _mm512_cvtepu16_epi32(a) HF_WIDENED(int32_t, uint16_t, a)
#define _mm512_cvtepu8_epi16(a) HF_WIDENED(int16_t, uint8_t, a)
#define _mm512_cvtepi8_epi16(a) HF_WIDENED(int16_t, int8_t, a)
#define HF_NARROWED(to, a, V)                                                                                       \
  emulated::Lanes<to>::each([wide = emulated::lanes<int32_t>(a)](int i) { return i < 16 ? to(wide.v[i]) : to(0); }) \
      .as<V>()
#define _mm512_cvtepi32_epi8(a) HF_NARROWED(int8_t, a, __m128i)
#define _mm512_cvtepi32_epi16(a) HF_NARROWED(int16_t, a, __m256i)
#define _mm512_permute_ps(a, by) emulated::permute_ps(a, by)
#define _mm512_shuffle_f32x4(a, b, by) emulated::shuffle_f32x4(a, b, by)
#define _mm512_shuffle_epi8(a, by) emulated::shuffle_epi8(a, by)
#define _mm512_madd_epi16(a, b) emulated::madd_epi16(a, b)
#define _mm512_maddubs_epi16(a, b) emulated::maddubs_epi16(a, b)
#define _mm512_dpbusd_epi32(sum, a, b) emulated::dpbusd(sum, a, b)
#define _mm512_dpwssd_epi32(sum, a, b) emulated::dpwssd(sum, a, b)
#define _mm512_unpacklo_epi32(a, b) emulated::unpack<int32_t>(a, b, false)
#define _mm512_unpackhi_epi32(a, b) emulated::unpack<int32_t>(a, b, true)
#define _mm512_unpacklo_epi64(a, b) emulated::unpack<int64_t>(a, b, false)
#define _mm512_unpackhi_epi64(a, b) emulated::unpack<int64_t>(a, b, true)
#define _mm512_shuffle_i32x4(a, b, by) emulated::shuffle_i32x4(a, b, by)
#define _mm512_cvtepi16_epi8(a) emulated::words_to_bytes(a)
#define _mm512_scalef_ps(a, b) emulated::scalef(a, b)
#define _mm512_test_epi32_mask(a, b) emulated::test(a, b)
#define _mm512_fpclass_ps_mask(a, of) emulated::classify<of>(a)
#define _mm512_cvtne2ps_pbh(a, b) emulated::to_bf16(a, b)
#define _mm512_cvtneps_pbh(a) emulated::extractf32x8(_mm512_castsi512_ps(emulated::to_bf16(a, a)), 0)
#define _mm512_cmp_ps_mask(a, b, how) emulated::compare<how>(a, b)
#define _mm512_mask_blend_ps(mask, a, b) emulated::blend<__m512>(mask, a, b)
#define _mm512_mask_blend_epi16(mask, a, b) emulated::blend_words(mask, a, b)
#define _mm512_mask_add_epi32(from, mask, a, b) emulated::blend<__m512i>(mask, from, _mm512_add_epi32(a, b))
#define _mm512_mask_or_epi32(from, mask, a, b) emulated::blend<__m512i>(mask, from, _mm512_or_si512(a, b))
#define HF_REDUCED(T, a, op) emulated::reduced<T>(a, [](T x, T y) { return op; })
#define _mm512_reduce_max_epu32(a) HF_REDUCED(uint32_t, a, x > y ? x : y)
#define _mm512_reduce_max_epi32(a) HF_REDUCED(int32_t, a, x > y ? x : y)
#define _mm512_reduce_add_epi32(a) int32_t(HF_REDUCED(uint32_t, a, x + y))
