// Sixteen outputs times four k of integers: unsigned codes of a weight, signed codes of an input, exact sums.
#pragma once

#include <cstring>

#include "grouped.h"
#include "vec_math.h"

namespace HF_ISA {

// ROWS: of input, whose sums a tile keeps in registers.
// Where products are summed in 16 bits, RUN is the number of quads after which such sums have to be widened, and codes
// of more than four bits are cut in two layers: sum = low + 16 * high.
#if HF_ISA_NUMBER == HF_AVX512VNNI
constexpr int ROWS = 12;
constexpr bool NARROW = false;
#elif HF_ISA_NUMBER == HF_AVX512
constexpr int ROWS = 12;
constexpr bool NARROW = true;
#elif HF_ISA_NUMBER == HF_AVX2
constexpr int ROWS = 6;
constexpr bool NARROW = true;
#else
constexpr int ROWS = 2;
constexpr bool NARROW = false;
#endif
template <int BITS>
constexpr int LAYERS = NARROW ? BITS / 4 : 1;
constexpr int64_t RUN = NARROW ? 8 : INT64_MAX;
static_assert(!NARROW || RUN * 2 * 15 * 127 <= INT16_MAX);

static inline int32_t four(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, QUAD);
  return bits;
}

#if HF_ISA_NUMBER >= HF_AVX512

// A layer of a panel's quad: sixteen outputs times four codes.
struct Quad {
  __m512i v;
};
struct Partial {
  __m512i v;
};

static inline Quad load_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void store_quad(uint8_t* p, Quad x) { _mm512_storeu_si512(p, x.v); }
// Thirty-two bytes: first the low halves, then the high ones.
static inline Quad halves(const uint8_t* p) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i wide = _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
  return {_mm512_and_si512(wide, _mm512_set1_epi8(15))};
}
// Of 8-bit codes the low or the high halves.
static inline Quad layer_of(Quad x, int layer) {
  return {_mm512_and_si512(layer ? _mm512_srli_epi16(x.v, 4) : x.v, _mm512_set1_epi8(15))};
}
#if HF_ISA_NUMBER == HF_AVX512VNNI
static inline Partial add_products(Partial sum, Quad w, const int8_t* x) {
  return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(four(x)))};
}
static inline Partial products(Quad w, const int8_t* x) { return add_products({_mm512_setzero_si512()}, w, x); }
static inline Ints widen(Partial sum) { return {sum.v}; }
#else
static inline Partial products(Quad w, const int8_t* x) {
  return {_mm512_maddubs_epi16(w.v, _mm512_set1_epi32(four(x)))};
}
static inline Partial add_products(Partial sum, Quad w, const int8_t* x) {
  return {_mm512_add_epi16(sum.v, products(w, x).v)};
}
static inline Ints widen(Partial sum) { return {_mm512_madd_epi16(sum.v, _mm512_set1_epi16(1))}; }
#endif
static inline Ints plus(Ints x, Ints y) { return {_mm512_add_epi32(x.v, y.v)}; }
static inline Ints times_16(Ints x) { return {_mm512_slli_epi32(x.v, 4)}; }

// For the quantization of inputs.
static inline Ints magnitude(Vec x) { return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(INT32_MAX))}; }
static inline Ints larger(Ints x, Ints y) { return {_mm512_max_epi32(x.v, y.v)}; }
static inline int32_t largest(Ints x) { return _mm512_reduce_max_epi32(x.v); }
static inline int32_t total(Ints x) { return _mm512_reduce_add_epi32(x.v); }
static inline Ints nearest(Vec x) { return {_mm512_cvtps_epi32(x.v)}; }
static inline void store_codes(int8_t* p, Ints x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}

#elif HF_ISA_NUMBER == HF_AVX2

struct Quad {
  __m256i a, b;
};
struct Partial {
  __m256i a, b;
};

static inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline __m256i low_bits(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
static inline __m256i high_bits(__m256i x) { return low_bits(_mm256_srli_epi16(x, 4)); }

static inline Quad load_quad(const uint8_t* p) { return {load_bytes(p), load_bytes(p + 32)}; }
static inline void store_quad(uint8_t* p, Quad x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.b);
}
static inline Quad halves(const uint8_t* p) {
  const __m256i both = load_bytes(p);
  return {low_bits(both), high_bits(both)};
}
static inline Quad layer_of(Quad x, int layer) {
  return layer ? Quad{high_bits(x.a), high_bits(x.b)} : Quad{low_bits(x.a), low_bits(x.b)};
}
// As assembly, because it stays in its place: GCC would begin with the products of all rows, and run out of registers.
static inline __m256i multiply(__m256i w, __m256i input) {
  __m256i sums;
  asm volatile("vpmaddubsw %[x], %[w], %[to]" : [to] "=x"(sums) : [w] "x"(w), [x] "x"(input));
  return sums;
}
static inline void multiply_add(__m256i& sums, __m256i w, __m256i input) {
  __m256i products;
  asm volatile("vpmaddubsw %[x], %[w], %[to]\n\tvpaddw %[to], %[sums], %[sums]"
               : [sums] "+x"(sums), [to] "=&x"(products)
               : [w] "x"(w), [x] "x"(input));
}
static inline Partial products(Quad w, const int8_t* x) {
  const __m256i input = _mm256_set1_epi32(four(x));
  return {multiply(w.a, input), multiply(w.b, input)};
}
static inline Partial add_products(Partial sum, Quad w, const int8_t* x) {
  const __m256i input = _mm256_set1_epi32(four(x));
  multiply_add(sum.a, w.a, input);
  multiply_add(sum.b, w.b, input);
  return sum;
}
static inline Ints widen(Partial sum) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sum.a, ones), _mm256_madd_epi16(sum.b, ones)};
}
static inline Ints plus(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline Ints times_16(Ints x) { return {_mm256_slli_epi32(x.a, 4), _mm256_slli_epi32(x.b, 4)}; }

static inline Ints magnitude(Vec x) {
  const __m256i mask = _mm256_set1_epi32(INT32_MAX);
  return {_mm256_and_si256(_mm256_castps_si256(x.a), mask), _mm256_and_si256(_mm256_castps_si256(x.b), mask)};
}
static inline Ints larger(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
static inline int32_t largest(Ints x) {
  const __m256i eight = _mm256_max_epi32(x.a, x.b);
  __m128i left = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  left = _mm_max_epi32(left, _mm_shuffle_epi32(left, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(left, _mm_shuffle_epi32(left, 0xb1)));
}
static inline int32_t total(Ints x) {
  const __m256i eight = _mm256_add_epi32(x.a, x.b);
  __m128i left = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  left = _mm_add_epi32(left, _mm_shuffle_epi32(left, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(left, _mm_shuffle_epi32(left, 0xb1)));
}
static inline Ints nearest(Vec x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline void store_codes(int8_t* p, Ints x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

#else

struct Quad {
  uint8_t v[QUAD_BYTES];
};
using Partial = Ints;

static inline Quad load_quad(const uint8_t* p) {
  Quad r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void store_quad(uint8_t* p, const Quad& x) { std::memcpy(p, x.v, sizeof x.v); }
static inline Quad halves(const uint8_t* p) {
  Quad r;
  for (int i = 0; i < QUAD_BYTES / 2; ++i) r.v[i] = p[i] & 15, r.v[i + QUAD_BYTES / 2] = p[i] >> 4;
  return r;
}
static inline const Quad& layer_of(const Quad& x, int) { return x; }
static inline Partial add_products(const Partial& sum, const Quad& w, const int8_t* x) {
  return each_int([&](int i) {
    const uint8_t* own = w.v + i * QUAD;
    return sum.v[i] + own[0] * x[0] + own[1] * x[1] + own[2] * x[2] + own[3] * x[3];
  });
}
static inline Partial products(const Quad& w, const int8_t* x) { return add_products(all(0), w, x); }
static inline Ints widen(const Partial& sum) { return sum; }
static inline Ints plus(const Ints& x, const Ints& y) { return each_int([&](int i) { return x.v[i] + y.v[i]; }); }
static inline Ints times_16(const Ints& x) { return each_int([&](int i) { return x.v[i] * 16; }); }

static inline Ints magnitude(const Vec& x) {
  return each_int([&](int i) { return int32_t(bits_of(x.v[i]) & 0x7fffffffu); });
}
static inline Ints larger(const Ints& x, const Ints& y) {
  return each_int([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
}
static inline int32_t largest(const Ints& x) {
  int32_t most = x.v[0];
  for (int i = 1; i < LANES; ++i) most = x.v[i] > most ? x.v[i] : most;
  return most;
}
static inline int32_t total(const Ints& x) {
  int32_t sum = 0;
  for (int i = 0; i < LANES; ++i) sum += x.v[i];
  return sum;
}
// half to even: 1.5 * 2^23 leaves no room for a fraction; for magnitudes up to 2^22
static inline Ints nearest(const Vec& x) {
  return each_int([&](int i) { return int32_t((x.v[i] + 0x1.8p23f) - 0x1.8p23f); });
}
static inline void store_codes(int8_t* p, const Ints& x) {
  for (int i = 0; i < LANES; ++i) p[i] = int8_t(x.v[i]);
}

#endif

}  // namespace HF_ISA
