// Rotation by blocks of a Hadamard matrix: butterflies over one row of floats, in place.
//
// The steps of hundredfold.plugin.dequantize.transform_input: distances 1, 2, 4, ... in this order, the norm last.
#pragma once

#include "vec.h"

namespace HF_ISA {

// One butterfly at a distance below 16, within the vector: the lower of two lanes becomes their sum, the upper one
// their difference. A sum has no order, and adding a negated number is subtracting it: the bits are those of both.
#if HF_ISA_NUMBER >= HF_AVX512

template <int H>
static inline Vec butterfly(Vec a) {
  constexpr uint32_t UPPER = H == 1 ? 0xaaaa : H == 2 ? 0xcccc : H == 4 ? 0xf0f0 : 0xff00;
  const __m512 signs = _mm512_mask_blend_ps(__mmask16(UPPER), _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
  __m512 other;
  if constexpr (H == 1) other = _mm512_permute_ps(a.v, 0xb1);
  if constexpr (H == 2) other = _mm512_permute_ps(a.v, 0x4e);
  if constexpr (H == 4) other = _mm512_shuffle_f32x4(a.v, a.v, 0xb1);
  if constexpr (H == 8) other = _mm512_shuffle_f32x4(a.v, a.v, 0x4e);
  return {_mm512_fmadd_ps(a.v, signs, other)};  // one step in place of a sum, a difference and a choice
}

#elif HF_ISA_NUMBER == HF_AVX2

template <int H>
static inline __m256 butterfly8(__m256 x) {
  __m256 other, sign;
  if constexpr (H == 1) {
    other = _mm256_permute_ps(x, 0xb1);
    sign = _mm256_set_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0);
  } else if constexpr (H == 2) {
    other = _mm256_permute_ps(x, 0x4e);
    sign = _mm256_set_ps(-0.0f, -0.0f, 0, 0, -0.0f, -0.0f, 0, 0);
  } else {
    other = _mm256_permute2f128_ps(x, x, 1);
    sign = _mm256_set_ps(-0.0f, -0.0f, -0.0f, -0.0f, 0, 0, 0, 0);
  }
  return _mm256_add_ps(other, _mm256_xor_ps(x, sign));
}
template <int H>
static inline Vec butterfly(Vec x) {
  if constexpr (H == 8) return {_mm256_add_ps(x.a, x.b), _mm256_sub_ps(x.a, x.b)};
  return {butterfly8<H>(x.a), butterfly8<H>(x.b)};
}

#else

template <int H>
static inline Vec butterfly(const Vec& x) {
  return each([&](int i) { return i & H ? x.v[i - H] - x.v[i] : x.v[i] + x.v[i + H]; });
}

#endif

static inline Vec butterflies(Vec x, int64_t block) {
  if (block > 1) x = butterfly<1>(x);
  if (block > 2) x = butterfly<2>(x);
  if (block > 4) x = butterfly<4>(x);
  if (block > 8) x = butterfly<8>(x);
  return x;
}

constexpr int64_t ROTATED = 4 * LANES;  // the usual block

// So many numbers in registers.
static inline void rotate64(Vec (&v)[4], Vec norm) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) v[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(v[i]))));
  const Vec a = add(v[0], v[1]), b = sub(v[0], v[1]), c = add(v[2], v[3]), d = sub(v[2], v[3]);
  v[0] = mul(add(a, c), norm);
  v[1] = mul(add(b, d), norm);
  v[2] = mul(sub(a, c), norm);
  v[3] = mul(sub(b, d), norm);
}

// Rotates x[k] in place, k a multiple of `block`, a power of two; x has room for k rounded up to 16.
static inline void rotate(float* x, int64_t k, int64_t block, float norm) {
  if (block == 1) return;
  const Vec by = broadcast(norm);
  for (int64_t i = 0; i < k; i += LANES) store(x + i, butterflies(load(x + i), block));
  for (int64_t h = LANES; h < block; h *= 2) {
    for (int64_t i = 0; i < k; i += 2 * h) {
      for (int64_t j = i; j < i + h; j += LANES) {
        const Vec low = load(x + j), high = load(x + j + h);
        store(x + j, add(low, high));
        store(x + j + h, sub(low, high));
      }
    }
  }
  for (int64_t i = 0; i < k; i += LANES) store(x + i, mul(load(x + i), by));
}

}  // namespace HF_ISA
