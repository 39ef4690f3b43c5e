// The processor's matrix unit: sixteen rows of input times sixteen outputs, sums in tiles.
//
// Intel's manual calls it AMX; LDTILECFG, TILELOADD, TDPBSUD, TDPBUSD and TDPBF16PS are in its volume 2.
#pragma once

#include <cstdint>

namespace HF_ISA {

constexpr int64_t UNIT_ROWS = 16, UNIT_BYTES = 64;  // of a tile at most

// How large each tile is, as LDTILECFG reads it.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileShapes& set(int tile, int64_t row_count, int64_t bytes) {
    rows[tile] = uint8_t(row_count), row_bytes[tile] = uint16_t(bytes);
    return *this;
  }
};

// The instructions, by number of tile. GCC's intrinsics take literals only, do not say that a tile is loaded from memory, and
// those of GCC 12 read eight bytes of the shapes, so that others may never be written.
#ifndef HF_EMULATED
static inline void tile_configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
static inline void tile_release() { asm volatile("tilerelease"); }
template <int TILE>
static inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
// Rows are `stride` bytes apart.
template <int TILE>
static inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
static inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}
// Adds to SUMS the products of unsigned ROWS with signed COLUMNS.
template <int SUMS, int ROWS, int COLUMNS>
static inline void tile_dot_unsigned_signed() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}
// Of signed ROWS with unsigned COLUMNS.
template <int SUMS, int ROWS, int COLUMNS>
static inline void tile_dot_signed_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}
// Adds to SUMS, which are floats, the products of bfloat16 ROWS with COLUMNS; dense.h tells the order.
template <int SUMS, int ROWS, int COLUMNS>
static inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}
#endif

// What is asked for while the unit works: so many lines with each 64 bytes of a row.
struct Ahead {
  const void* next;
  int64_t lines;

  void expect() {
    const char* line = static_cast<const char*>(next);
    for (const char* end = line + lines * 64; line < end; line += 64) __builtin_prefetch(line, 0, 2);
    next = line;
  }
};

// While it lives the thread's tiles have these shapes; after that a switch of threads has nothing of them to save.
class MatrixUnit {
 public:
  explicit MatrixUnit(const TileShapes& shapes) { tile_configure(shapes); }
  ~MatrixUnit() { tile_release(); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

}  // namespace HF_ISA
