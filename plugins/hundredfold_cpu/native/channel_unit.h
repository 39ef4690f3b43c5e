// Integers by channel times many rows of codes on the matrix unit: the sums of 32 rows and 32 outputs are four tiles.
#pragma once

#include <type_traits>

#include "channel.h"
#include "lines.h"
#include "matrix_unit.h"

namespace HF_ISA {

// Rows from which the unit is quicker, though it computes sixteen or thirty-two.
constexpr int64_t UNIT_LEAST = 9;
constexpr int64_t UNIT_TILES = 2;  // of rows, and panels, that are multiplied together
constexpr int64_t TILE_SUMS = UNIT_ROWS * PANEL;

// Panels as the unit reads them: 64 columns at a time, the last ones filled up with zeros elsewhere.
template <int P>
struct UnitPanels {
  const int8_t* codes[P];
  alignas(64) int8_t rest[P][PANEL * UNIT_BYTES];
  int64_t whole;  // columns

  template <class T>
  UnitPanels(const ChannelProduct<T>& job, int64_t panel) : whole(job.w.k / UNIT_BYTES * UNIT_BYTES) {
    const int64_t left = job.width() - whole * PANEL;
    for (int p = 0; p < P; ++p) {
      codes[p] = job.w.codes + (panel + p) * job.width();
      if (left == 0) continue;
      std::memset(rest[p], 0, sizeof rest[p]);
      std::memcpy(rest[p], codes[p] + whole * PANEL, size_t(left));
    }
  }
};

// R times sixteen rows and P panels to sums[R][P][16][16], in tiles 0 to 3.
template <int R, int P>
static void unit_sums(const Code* x, int64_t stride, const UnitPanels<P>& panels, int64_t columns, Ahead& ahead, int32_t* sums) {
  const auto add_columns = [&](int64_t column, const int8_t* first, const int8_t* second) {
    ahead.expect();
    tile_load<4>(x + column, stride);
    tile_load<6>(first, UNIT_BYTES);
    tile_dot_unsigned_signed<0, 4, 6>();
    if constexpr (P > 1) {
      tile_load<7>(second, UNIT_BYTES);
      tile_dot_unsigned_signed<1, 4, 7>();
    }
    if constexpr (R > 1) {
      tile_load<5>(x + UNIT_ROWS * stride + column, stride);
      tile_dot_unsigned_signed<2, 5, 6>();
      if constexpr (P > 1) tile_dot_unsigned_signed<3, 5, 7>();
    }
  };
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int64_t column = 0; column < panels.whole; column += UNIT_BYTES) {
    add_columns(column, panels.codes[0] + column * PANEL, panels.codes[P - 1] + column * PANEL);
  }
  if (panels.whole < columns) add_columns(panels.whole, panels.rest[0], panels.rest[P - 1]);
  tile_store<0>(sums, UNIT_BYTES);
  if constexpr (P > 1) tile_store<1>(sums + TILE_SUMS, UNIT_BYTES);
  if constexpr (R > 1) tile_store<2>(sums + P * TILE_SUMS, UNIT_BYTES);
  if constexpr (R > 1 && P > 1) tile_store<3>(sums + 3 * TILE_SUMS, UNIT_BYTES);
}

// All rows times P panels.
template <int P, class T>
static void unit_rows(const ChannelProduct<T>& job, int64_t panel) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, UNIT_ROWS, UNIT_BYTES);
  const MatrixUnit unit(shapes);
  const UnitPanels<P> panels(job, panel);
  const ChannelProduct<T> own = job;  // what is kept in registers while tiles are stored
  alignas(64) int32_t sums[UNIT_TILES * P * TILE_SUMS];
  Sum corrections[P];
  for (int p = 0; p < P; ++p) corrections[p] = load_sum(own.w.correction + (panel + p) * PANEL);
  constexpr int64_t MOST = UNIT_TILES * UNIT_ROWS;
  const bool both_whole = (panel + P) * PANEL <= own.w.n;
  const bool to_memory = panel % P == 0 && goes_to_memory(own.y, own.m, own.y_stride * int64_t(sizeof(T)));
  // The thread's next panels, a part with each of the blocks of rows.
  const int64_t blocks = (own.m + MOST - 1) / MOST;
  Ahead ahead{own.w.codes + (panel + P) * own.width(), (P * PANEL + blocks - 1) / blocks};
  for (int64_t row = 0; row < own.m; row += MOST) {
    const int64_t count = own.m - row < MOST ? own.m - row : MOST;
    const Code* x = own.x + row * own.x_stride;
    if (count > UNIT_ROWS) {
      unit_sums<2, P>(x, own.x_stride, panels, own.w.k, ahead, sums);
    } else {
      unit_sums<1, P>(x, own.x_stride, panels, own.w.k, ahead, sums);
    }
    for (int64_t r = 0; r < count; ++r) {
      const Vec scale = broadcast(own.scales[row + r]);
      const int32_t* from = sums + r / UNIT_ROWS * P * TILE_SUMS + r % UNIT_ROWS * PANEL;
      Sum row_sums[P];
      for (int p = 0; p < P; ++p) row_sums[p] = plus(load_sum(from + p * TILE_SUMS), corrections[p]);
      if constexpr (std::is_same_v<T, uint16_t> && P == 2) {
        if (both_whole) {
          const Vec first = own.outputs(panel, row_sums[0], scale), second = own.outputs(panel + 1, row_sums[1], scale);
          uint16_t* const to = own.y + (row + r) * own.y_stride + panel * PANEL;
          if (to_memory) {
            alignas(LINE) uint16_t line[2 * LANES];
            store_bf16(line, first, second);
            line_to_memory(line, to);
          } else {
            store_bf16(to, first, second);
          }
          continue;
        }
      }
      for (int p = 0; p < P; ++p) own.put_row(row + r, panel + p, row_sums[p], scale);
    }
  }
  if (to_memory) lines_are_in_memory();
}

}  // namespace HF_ISA
