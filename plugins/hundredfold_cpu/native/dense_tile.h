// Weights in bfloat16 times rows of floats, sums in registers.
#pragma once

#include "dense.h"

namespace HF_ISA {

// Rows of a tile: as many sums as registers hold, two for each.
#if HF_ISA_NUMBER >= HF_AVX512
constexpr int TILE_ROWS = 8;
#else
constexpr int TILE_ROWS = 2;
#endif

// R rows times a panel.
template <int R>
static void dense_tile(const DenseProduct<float>& job, int64_t panel, int64_t row) {
  const uint16_t* weights = job.values(panel);
  const float* x = job.x + row * job.x_stride;
  Vec sums[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums[r] = zero();
  for (int64_t block = 0; block < job.w.blocks(); ++block) {
    Vec even[R], odd[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) even[r] = odd[r] = zero();
#pragma GCC unroll 2
    for (int64_t k = 0; k < BLOCK; k += 2, weights += 2 * PANEL) {
      expect_read(weights + AHEAD);
      Vec first, second;
      load_bf16_pairs(weights, first, second);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        even[r] = fma(broadcast(x[r * job.x_stride + k]), first, even[r]);
        odd[r] = fma(broadcast(x[r * job.x_stride + k + 1]), second, odd[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = add(sums[r], add(even[r], odd[r]));
    x += BLOCK;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) job.put_row(row + r, panel, sums[r]);
}

// All rows from `row` on, in tiles of R and, for what is left, of fewer.
template <int R>
static void dense_rows(const DenseProduct<float>& job, int64_t panel, int64_t row) {
  for (; row + R <= job.m; row += R) dense_tile<R>(job, panel, row);
  if constexpr (R > 1) {
    if (row < job.m) dense_rows<R - 1>(job, panel, row);
  }
}

}  // namespace HF_ISA
