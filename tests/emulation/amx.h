// The matrix unit's instructions as loops over tiles, by Intel's description of each; native/matrix_unit.h names them.
#pragma once

#include "avx512.h"

#define HF_EMULATED

namespace emulated {

struct Tile {
  int rows, row_bytes;
  uint8_t v[16][64];
};
inline thread_local Tile tiles[8];

inline void load_config(const void* from) {
  const uint8_t* shapes = static_cast<const uint8_t*>(from);
  for (int tile = 0; tile < 8; ++tile) {
    uint16_t row_bytes;
    __builtin_memcpy(&row_bytes, shapes + 16 + 2 * tile, 2);
    tiles[tile] = Tile{shapes[48 + tile], row_bytes, {}};
    if (shapes[0] != 1 || tiles[tile].rows > 16 || row_bytes > 64) __builtin_trap();
  }
}
inline void release() {
  for (Tile& tile : tiles) tile = Tile{};
}

template <class RowCode, class ColumnCode>
inline void dot(Tile& sums, const Tile& rows, const Tile& columns) {
  if (sums.rows != rows.rows || rows.row_bytes != 4 * columns.rows || sums.row_bytes != columns.row_bytes) __builtin_trap();
  for (int m = 0; m < sums.rows; ++m) {
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      int32_t sum;
      __builtin_memcpy(&sum, sums.v[m] + 4 * n, 4);
      int64_t total = sum;
      for (int k = 0; k < rows.row_bytes; ++k) total += RowCode(rows.v[m][k]) * ColumnCode(columns.v[k / 4][4 * n + k % 4]);
      sum = wrapped(total);
      __builtin_memcpy(sums.v[m] + 4 * n, &sum, 4);
    }
  }
}

// A block's even columns are one chain, its odd ones another; floats that are too small for a normal one are zero.
inline void dot_bf16(Tile& sums, const Tile& rows, const Tile& columns) {
  if (sums.rows != rows.rows || rows.row_bytes != 4 * columns.rows || sums.row_bytes != columns.row_bytes) __builtin_trap();
  const unsigned control = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(control | 0x8040);
  const auto number = [](const uint8_t* from) {
    uint16_t upper;
    __builtin_memcpy(&upper, from, 2);
    const uint32_t bits = uint32_t(upper) << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
  };
  for (int m = 0; m < sums.rows; ++m) {
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      float sum, chains[2] = {0, 0};
      for (int k = 0; k < rows.row_bytes / 2; ++k)
        chains[k % 2] = __builtin_fmaf(number(rows.v[m] + 2 * k), number(columns.v[k / 2] + 4 * n + 2 * (k % 2)), chains[k % 2]);
      __builtin_memcpy(&sum, sums.v[m] + 4 * n, 4);
      sum += chains[0] + chains[1];
      __builtin_memcpy(sums.v[m] + 4 * n, &sum, 4);
    }
  }
  __builtin_ia32_ldmxcsr(control);
}

}  // namespace emulated

template <class Shapes>
inline void tile_configure(const Shapes& shapes) {
  static_assert(sizeof shapes == 64);
  emulated::load_config(&shapes);
}
inline void tile_release() { emulated::release(); }

template <int TILE>
inline void tile_zero() {
  __builtin_memset(emulated::tiles[TILE].v, 0, sizeof emulated::tiles[TILE].v);
}
template <int TILE>
inline void tile_load(const void* from, int64_t stride) {
  emulated::Tile& tile = emulated::tiles[TILE];
  tile_zero<TILE>();
  for (int r = 0; r < tile.rows; ++r)
    __builtin_memcpy(tile.v[r], static_cast<const uint8_t*>(from) + r * stride, size_t(tile.row_bytes));
}
template <int TILE>
inline void tile_store(void* to, int64_t stride) {
  const emulated::Tile& tile = emulated::tiles[TILE];
  for (int r = 0; r < tile.rows; ++r) __builtin_memcpy(static_cast<uint8_t*>(to) + r * stride, tile.v[r], size_t(tile.row_bytes));
}
template <int SUMS, int ROWS, int COLUMNS>
inline void tile_dot_unsigned_signed() {
  emulated::dot<uint8_t, int8_t>(emulated::tiles[SUMS], emulated::tiles[ROWS], emulated::tiles[COLUMNS]);
}
template <int SUMS, int ROWS, int COLUMNS>
inline void tile_dot_signed_unsigned() {
  emulated::dot<int8_t, uint8_t>(emulated::tiles[SUMS], emulated::tiles[ROWS], emulated::tiles[COLUMNS]);
}
template <int SUMS, int ROWS, int COLUMNS>
inline void tile_dot_bf16() {
  emulated::dot_bf16(emulated::tiles[SUMS], emulated::tiles[ROWS], emulated::tiles[COLUMNS]);
}
