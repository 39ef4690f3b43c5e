// Weights in bfloat16 times rows of bfloat16 on the matrix unit: the sums of 32 rows and 32 outputs are four tiles.
#pragma once

#include "dense.h"
#include "matrix_unit.h"

namespace HF_ISA {

constexpr int64_t UNIT_TILES = 2;  // of rows, and panels, that are multiplied together
constexpr int64_t TILE_SUMS = UNIT_ROWS * PANEL;

// Tiles 0 to 3 for sums, 4 and 5 for rows, of which the second tile may have fewer, 6 and 7 for weights.
static inline TileShapes unit_shapes(int64_t rows) {
  TileShapes shapes;
  const int64_t first = rows < UNIT_ROWS ? rows : UNIT_ROWS, second = rows - first;
  shapes.set(0, first, UNIT_BYTES).set(1, first, UNIT_BYTES).set(4, first, UNIT_BYTES);
  if (second > 0) shapes.set(2, second, UNIT_BYTES).set(3, second, UNIT_BYTES).set(5, second, UNIT_BYTES);
  return shapes.set(6, UNIT_ROWS, UNIT_BYTES).set(7, UNIT_ROWS, UNIT_BYTES);
}

// R tiles of rows from `row` on times P panels to sums[R][P][16][16].
template <int R, int P>
static void unit_sums(const DenseProduct<uint16_t>& job, int64_t panel, int64_t row, Ahead& ahead, float* sums) {
  const int64_t stride = job.x_stride * int64_t(sizeof(uint16_t)), width = job.w.width();
  const uint16_t* x = job.x + row * job.x_stride;
  const uint16_t* weights = job.values(panel);
  tile_zero<0>();
  if constexpr (P > 1) tile_zero<1>();
  if constexpr (R > 1) tile_zero<2>();
  if constexpr (R > 1 && P > 1) tile_zero<3>();
  for (int64_t block = 0; block < job.w.blocks(); ++block) {
    ahead.expect();
    tile_load<4>(x, stride);
    tile_load<6>(weights, UNIT_BYTES);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (P > 1) {
      tile_load<7>(weights + width, UNIT_BYTES);
      tile_dot_bf16<1, 4, 7>();
    }
    if constexpr (R > 1) {
      tile_load<5>(x + UNIT_ROWS * job.x_stride, stride);
      tile_dot_bf16<2, 5, 6>();
      if constexpr (P > 1) tile_dot_bf16<3, 5, 7>();
    }
    x += BLOCK, weights += BLOCK * PANEL;
  }
  tile_store<0>(sums, UNIT_BYTES);
  if constexpr (P > 1) tile_store<1>(sums + TILE_SUMS, UNIT_BYTES);
  if constexpr (R > 1) tile_store<2>(sums + P * TILE_SUMS, UNIT_BYTES);
  if constexpr (R > 1 && P > 1) tile_store<3>(sums + 3 * TILE_SUMS, UNIT_BYTES);
}

// `count` rows from `row` on times P panels; tiles have the shapes for so many.
template <int P>
static void unit_block(const DenseProduct<uint16_t>& job, int64_t panel, int64_t row, int64_t count, Ahead& ahead) {
  alignas(64) float sums[UNIT_TILES * P * TILE_SUMS];
  if (count > UNIT_ROWS) {
    unit_sums<2, P>(job, panel, row, ahead, sums);
  } else {
    unit_sums<1, P>(job, panel, row, ahead, sums);
  }
  const bool both_whole = P == 2 && (panel + 2) * PANEL <= job.w.n;
  for (int64_t r = 0; r < count; ++r) {
    const float* own = sums + r / UNIT_ROWS * P * TILE_SUMS + r % UNIT_ROWS * PANEL;
    if (both_whole) {
      const Vec first = job.with_bias(panel, load(own)), second = job.with_bias(panel + 1, load(own + TILE_SUMS));
      store_bf16(job.y + (row + r) * job.y_stride + panel * PANEL, first, second);
      continue;
    }
    for (int p = 0; p < P; ++p) job.put_row(row + r, panel + p, load(own + p * TILE_SUMS));
  }
}

// All rows times P panels. The thread's next panels are asked for, a part with each of the blocks of rows.
template <int P>
static void unit_rows(const DenseProduct<uint16_t>& job, int64_t panel) {
  constexpr int64_t MOST = UNIT_TILES * UNIT_ROWS;
  const int64_t blocks = (job.m + MOST - 1) / MOST, whole = job.m / MOST * MOST;
  Ahead ahead{job.values(panel + P), (P * UNIT_ROWS + blocks - 1) / blocks};
  if (whole) {
    const MatrixUnit unit(unit_shapes(MOST));
    for (int64_t row = 0; row < whole; row += MOST) unit_block<P>(job, panel, row, MOST, ahead);
  }
  if (whole < job.m) {
    const MatrixUnit unit(unit_shapes(job.m - whole));
    unit_block<P>(job, panel, whole, job.m - whole, ahead);
  }
}

// At most sixteen rows times some panels, one after the other as memory is quickest at.
static void unit_few(const DenseProduct<uint16_t>& job, int64_t first, int64_t end) {
  const MatrixUnit unit(unit_shapes(job.m));
  for (int64_t panel = first; panel < end; ++panel) {
    Ahead ahead{job.values(panel) + AHEAD, UNIT_ROWS};
    unit_block<1>(job, panel, 0, job.m, ahead);
  }
}

}  // namespace HF_ISA
