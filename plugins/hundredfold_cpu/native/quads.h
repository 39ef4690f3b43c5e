// Sixteen outputs times a step of columns, in integers: unsigned codes of a weight, signed codes of an input, exact sums.
//
// A step is 64 bytes of a panel. Of bytes it is four columns, a quad. Where products of bytes are summed in 16 bits, two
// of 8-bit codes would not fit: such codes and their inputs are multiplied as 16 bits, and a step is two columns.
#pragma once

#include <cstring>

#include "grouped.h"
#include "vec_math.h"

namespace HF_ISA {

// ROWS: of input, whose sums a tile keeps in registers. NARROW: products of bytes are summed in 16 bits.
#if HF_ISA_NUMBER >= HF_AVX512VNNI
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
constexpr bool WIDE = NARROW && BITS == 8;
template <int BITS>
constexpr int64_t STEP = WIDE<BITS> ? 2 : QUAD;
// Steps after which sums have to be widened.
template <int BITS>
constexpr int64_t RUN = NARROW && !WIDE<BITS> ? 8 : INT64_MAX;
static_assert(!NARROW || RUN<4> * 2 * 15 * 127 <= INT16_MAX);

// An input's code.
template <bool IS_WIDE>
struct Input {
  using Code = int8_t;
};
template <>
struct Input<true> {
  using Code = int16_t;
};
template <int BITS>
using InputCode = typename Input<WIDE<BITS>>::Code;

// What a step takes of an input: four bytes.
static inline int32_t part_of(const void* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return bits;
}

#if HF_ISA_NUMBER >= HF_AVX512

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
#if HF_ISA_NUMBER >= HF_AVX512VNNI
static inline Partial add_products(Partial sum, Quad w, const int8_t* x) {
  return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(part_of(x)))};
}
static inline Partial products(Quad w, const int8_t* x) { return add_products({_mm512_setzero_si512()}, w, x); }
static inline Ints widen(Partial sum) { return {sum.v}; }
static inline Quad columns_of(Quad x, int64_t) { return x; }  // never called
#else
static inline Partial products(Quad w, const int8_t* x) {
  return {_mm512_maddubs_epi16(w.v, _mm512_set1_epi32(part_of(x)))};
}
static inline Partial add_products(Partial sum, Quad w, const int8_t* x) {
  return {_mm512_add_epi16(sum.v, products(w, x).v)};
}
static inline Ints widen(Partial sum) { return {_mm512_madd_epi16(sum.v, _mm512_set1_epi16(1))}; }
// Of a quad the first or the second two columns, in 16 bits.
static inline Quad columns_of(Quad x, int64_t second) {  // a byte of 0x80 gives zero
  const int two = second ? int(0x80038002) : int(0x80018000), lane = 0x04040404;
  const __m128i four = _mm_add_epi8(_mm_setr_epi32(0, lane, 2 * lane, 3 * lane), _mm_set1_epi32(two));
  return {_mm512_shuffle_epi8(x.v, _mm512_broadcast_i32x4(four))};
}
static inline Ints products(Quad w, const int16_t* x) { return {_mm512_madd_epi16(w.v, _mm512_set1_epi32(part_of(x)))}; }
static inline Ints add_products(Ints sum, Quad w, const int16_t* x) {
  return {_mm512_add_epi32(sum.v, products(w, x).v)};
}
static inline Ints widen(Ints sum) { return sum; }
#endif
static inline Ints plus(Ints x, Ints y) { return {_mm512_add_epi32(x.v, y.v)}; }

// For the quantization of inputs.
static inline Ints magnitude(Vec x) { return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(INT32_MAX))}; }
static inline Ints larger(Ints x, Ints y) { return {_mm512_max_epi32(x.v, y.v)}; }
static inline int32_t largest(Ints x) { return _mm512_reduce_max_epi32(x.v); }
static inline int32_t total(Ints x) { return _mm512_reduce_add_epi32(x.v); }
static inline Ints nearest(Vec x) { return {_mm512_cvtps_epi32(x.v)}; }
static inline void store_codes(int8_t* p, Ints x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
static inline void store_codes(int16_t* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
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
// Of a quad the first or the second two columns, in 16 bits.
static inline Quad columns_of(Quad x, int64_t second) {  // a byte of 0x80 gives zero
  const int two = second ? int(0x80038002) : int(0x80018000), lane = 0x04040404;
  const __m128i four = _mm_add_epi8(_mm_setr_epi32(0, lane, 2 * lane, 3 * lane), _mm_set1_epi32(two));
  const __m256i places = _mm256_broadcastsi128_si256(four);
  return {_mm256_shuffle_epi8(x.a, places), _mm256_shuffle_epi8(x.b, places)};
}
// A row at a time as assembly, because it stays in its place: GCC would begin with the products of all rows, and run out
// of registers.
static inline Partial products(Quad w, const int8_t* x) {
  Partial sum;
  __m256i input;
  asm volatile(
      "vpbroadcastd %[x], %[input]\n\tvpmaddubsw %[input], %[wa], %[a]\n\tvpmaddubsw %[input], %[wb], %[b]"
      : [a] "=&x"(sum.a), [b] "=x"(sum.b), [input] "=&x"(input)
      : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*reinterpret_cast<const int8_t(*)[QUAD]>(x)));
  return sum;
}
static inline Partial add_products(Partial sum, Quad w, const int8_t* x) {
  __m256i input, other;
  asm volatile(
      "vpbroadcastd %[x], %[input]\n\tvpmaddubsw %[input], %[wa], %[other]\n\tvpmaddubsw %[input], %[wb], %[input]\n\t"
      "vpaddw %[other], %[a], %[a]\n\tvpaddw %[input], %[b], %[b]"
      : [a] "+x"(sum.a), [b] "+x"(sum.b), [input] "=&x"(input), [other] "=&x"(other)
      : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*reinterpret_cast<const int8_t(*)[QUAD]>(x)));
  return sum;
}
alignas(32) static const int16_t ONES[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static inline Ints widen(Partial sum) {
  asm volatile("vpmaddwd %[ones], %[a], %[a]\n\tvpmaddwd %[ones], %[b], %[b]" : [a] "+x"(sum.a), [b] "+x"(sum.b) : [ones] "m"(ONES));
  return {sum.a, sum.b};
}
static inline Ints plus(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline Ints products(Quad w, const int16_t* x) {
  Ints sum;
  __m256i input;
  asm volatile("vpbroadcastd %[x], %[input]\n\tvpmaddwd %[input], %[wa], %[a]\n\tvpmaddwd %[input], %[wb], %[b]"
               : [a] "=&x"(sum.a), [b] "=x"(sum.b), [input] "=&x"(input)
               : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*reinterpret_cast<const int16_t(*)[2]>(x)));
  return sum;
}
static inline Ints add_products(Ints sum, Quad w, const int16_t* x) {
  __m256i input, other;
  asm volatile(
      "vpbroadcastd %[x], %[input]\n\tvpmaddwd %[input], %[wa], %[other]\n\tvpmaddwd %[input], %[wb], %[input]\n\t"
      "vpaddd %[other], %[a], %[a]\n\tvpaddd %[input], %[b], %[b]"
      : [a] "+x"(sum.a), [b] "+x"(sum.b), [input] "=&x"(input), [other] "=&x"(other)
      : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*reinterpret_cast<const int16_t(*)[2]>(x)));
  return sum;
}
static inline Ints widen(Ints sum) { return sum; }

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
static inline void store_codes(int16_t* p, Ints x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
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
static inline Partial add_products(const Partial& sum, const Quad& w, const int8_t* x) {
  return each_int([&](int i) {
    const uint8_t* own = w.v + i * QUAD;
    return sum.v[i] + own[0] * x[0] + own[1] * x[1] + own[2] * x[2] + own[3] * x[3];
  });
}
static inline Partial products(const Quad& w, const int8_t* x) { return add_products(all(0), w, x); }
static inline Ints widen(const Partial& sum) { return sum; }
static inline Quad columns_of(const Quad& x, int64_t) { return x; }  // never called
static inline Ints plus(const Ints& x, const Ints& y) { return each_int([&](int i) { return x.v[i] + y.v[i]; }); }

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
