// Sketches of keys, 4 bits a number, kept beside the cache: from them a query's score with every key is guessed.
//
// Of a token's key of one kv head `largest` is the largest magnitude; a code is x * (7 / largest), rounded half to even,
// plus 8, and worth largest / 7. It depends on that key alone. A block holds for each kv head
//   scales [tokens], float
//   codes  [tokens / 16][columns / 8][64], columns padded to sixteen
// Of the 64 bytes each token has four: byte j holds columns j (low half) and j + 4 (high half) of the eight. So one
// instruction multiplies four columns of eight tokens, and no byte is shared by two tokens.
#pragma once

#include "paged.h"

namespace HF_ISA {

constexpr int64_t SKETCHED = 8;     // columns that lie together
constexpr int64_t EIGHTH = 4 * LANES;  // their bytes
constexpr float SKETCH_TOP = 7.0f;
constexpr int SKETCH_ZERO = 8;
constexpr float GUESS_TOP = 63.0f;  // of a query's codes: products of 64 columns, two and two, fit in 16 bits

struct Sketches {
  uint8_t* blocks;
  int64_t heads, size, width;  // `width` columns, padded

  explicit Sketches(const Layer& layer)
      : blocks(layer.sketches), heads(layer.num_kv_heads), size(layer.block_size), width(up(layer.head_dim, LANES)) {}

  int64_t units() const { return width / SKETCHED; }
  int64_t bytes() const { return size * (int64_t(sizeof(float)) + width / 2); }  // of a block and head
  float* scales(int64_t block, int64_t head) const {
    return reinterpret_cast<float*>(blocks + (block * heads + head) * bytes());
  }
  // of the sixteen tokens that begin at `offset`
  uint8_t* codes(int64_t block, int64_t head, int64_t offset) const {
    return reinterpret_cast<uint8_t*>(scales(block, head) + size) + offset * (width / 2);
  }
};

// Integers up to `limit` for the first `dim` of `width` columns (the others are 0), and what they are multiples of.
template <class T>
static inline float to_codes(const T* x, int64_t dim, int64_t width, float factor, float limit, int16_t* codes) {
  float wide[MOST_DIM];
  for (int64_t d = 0; d < width; d += LANES) store(wide + d, mul(get_part(x + d, dim - d), broadcast(factor)));
  const Quantized how = quantized(top_of(wide, width), limit);
  for (int64_t d = 0; d < width; d += LANES)
    store_int16(codes + d, how.ratio == 0 ? zero() : mul(load(wide + d), broadcast(how.ratio)));
  return how.scale;
}

template <class T>
static void sketch_token(const Sketches& sketches, int64_t slot, int64_t head, const T* k, int64_t dim) {
  const int64_t block = slot / sketches.size, offset = slot % sketches.size;
  int16_t codes[MOST_DIM];
  sketches.scales(block, head)[offset] = to_codes(k, dim, sketches.width, 1.0f, SKETCH_TOP, codes);
  uint8_t* to = sketches.codes(block, head, offset / LANES * LANES) + offset % LANES * 4;
  for (int64_t d = 0; d < sketches.width; d += SKETCHED, to += EIGHTH)
    for (int64_t j = 0; j < 4; ++j) to[j] = uint8_t((codes[d + j] + SKETCH_ZERO) | (codes[d + 4 + j] + SKETCH_ZERO) << 4);
}

// Scores of R queries with the sketches of sixteen keys: whole sums that begin with `starts`, times the key's scale, times
// the query's factor. Codes of queries are [R][units][8]. Meanwhile as many sketches from `ahead` on are asked for.
#if HF_ISA_NUMBER == HF_PORTABLE

template <int R>
static inline void guess(const int8_t* q, const int32_t* starts, const float* factors, int64_t units, const uint8_t* keys,
                         const float* scales, const uint8_t*, float* scores, int64_t stride) {
  for (int r = 0; r < R; ++r) {
    const int8_t* own = q + r * units * SKETCHED;
    for (int i = 0; i < LANES; ++i) {
      int32_t sum = starts[r];
      for (int64_t u = 0; u < units; ++u)
        for (int j = 0; j < 4; ++j) {
          const int32_t both = keys[u * EIGHTH + 4 * i + j];
          sum += (both & 15) * own[u * SKETCHED + j] + (both >> 4) * own[u * SKETCHED + 4 + j];
        }
      scores[r * stride + i] = float(sum) * scales[i] * factors[r];
    }
  }
}

#elif HF_ISA_NUMBER >= HF_AVX512VNNI

template <int R>
__attribute__((noinline)) static void guess(const int8_t* q, const int32_t* starts, const float* factors, int64_t units,
                                            const uint8_t* keys, const float* scales, const uint8_t* ahead, float* scores,
                                            int64_t stride) {
  const __m512i mask = _mm512_set1_epi32(0x0f0f0f0f);
  const auto four = [](const int8_t* p) {
    int32_t all;
    __builtin_memcpy(&all, p, 4);
    return _mm512_set1_epi32(all);
  };
  __m512i sums[R][2];  // of low and of high halves: a product need not wait for the one before it
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums[r][0] = _mm512_set1_epi32(starts[r]), sums[r][1] = _mm512_setzero_si512();
#pragma GCC unroll 1
  for (int64_t u = 0; u < units; ++u) {
    expect_read(ahead + u * EIGHTH);
    const __m512i both = _mm512_loadu_si512(keys + u * EIGHTH);
    const __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi32(both, 4), mask);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int8_t* own = q + (r * units + u) * SKETCHED;
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], low, four(own));
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], high, four(own + 4));
    }
  }
  const Vec own = load(scales);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec sum = to_float(Ints{_mm512_add_epi32(sums[r][0], sums[r][1])});
    store(scores + r * stride, mul(mul(sum, own), broadcast(factors[r])));
  }
}

#else

static inline __m256i load_32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline __m256i broadcast_four(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}

// With 256 bits on AVX-512 without VNNI, too. A function of its own, and sums that are added to in place: they stay in
// registers so.
template <int R>
__attribute__((noinline)) static void guess(const int8_t* q, const int32_t* starts, const float* factors, int64_t units,
                                            const uint8_t* keys, const float* scales, const uint8_t* ahead, float* scores,
                                            int64_t stride) {
  constexpr int64_t FIT = 8;  // units whose products fit in 16 bits
  const __m256i mask = _mm256_set1_epi8(15);
  int32_t before[R][LANES];
  for (int64_t first = 0; first < units; first += FIT) {
    const int64_t end = first + FIT < units ? first + FIT : units;
    __m256i part[R][2];
    for (int r = 0; r < R; ++r) part[r][0] = part[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int64_t u = first; u < end; ++u) {
      expect_read(ahead + u * EIGHTH);
      const __m256i both[2] = {load_32(keys + u * EIGHTH), load_32(keys + u * EIGHTH + EIGHTH / 2)};
      for (int half = 0; half < 2; ++half) {
        __m256i codes[2];
        for (int i = 0; i < 2; ++i) codes[i] = _mm256_and_si256(half ? _mm256_srli_epi16(both[i], 4) : both[i], mask);
        for (int r = 0; r < R; ++r) {
          const __m256i own = broadcast_four(q + (r * units + u) * SKETCHED + 4 * half);
          for (int i = 0; i < 2; ++i) {
            const __m256i products = _mm256_maddubs_epi16(codes[i], own);
            asm("vpaddw %1, %0, %0" : "+x"(part[r][i]) : "x"(products));
          }
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < 2; ++i) {
        const __m256i start = first ? load_32(before[r] + 8 * i) : _mm256_set1_epi32(starts[r]);
        const __m256i sum = _mm256_add_epi32(start, _mm256_madd_epi16(part[r][i], _mm256_set1_epi16(1)));
        if (end < units) {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(before[r] + 8 * i), sum);
        } else {
          const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_loadu_ps(scales + 8 * i));
          _mm256_storeu_ps(scores + r * stride + 8 * i, _mm256_mul_ps(scaled, _mm256_set1_ps(factors[r])));
        }
      }
  }
}

#endif

}  // namespace HF_ISA
