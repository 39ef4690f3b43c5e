// The integer products of many rows on the matrix unit: a group's sums are a tile, what becomes of them stays in registers.
//
// The same sums and the same chain over the groups as in grouped_tile.h.
#pragma once

#include "grouped_tile.h"
#include "matrix_unit.h"

namespace HF_ISA {

// Columns that are multiplied at once: a group is a whole number of such.
static inline int64_t unit_columns(const GroupedWeight& w) {
  const int64_t power = w.group & -w.group;
  return power < UNIT_BYTES ? power : UNIT_BYTES;
}

// Whether the unit's tiles fit the groups; fewer columns at once would be no gain.
static inline bool unit_takes(const GroupedWeight& w) { return unit_columns(w) >= 16 && w.k % unit_columns(w) == 0; }

// Tiles of even groups: 0 has sums, 1 inputs, 2 codes; of odd ones 4, 5 and 6.
static inline TileShapes unit_shapes(const GroupedWeight& w) {
  const int64_t columns = unit_columns(w);
  TileShapes shapes;
  for (int first = 0; first <= 4; first += 4)
    shapes.set(first, UNIT_ROWS, PANEL * 4).set(first + 1, UNIT_ROWS, columns).set(first + 2, columns / QUAD, QUAD_BYTES);
  return shapes;
}

// Groups whose sums are taken before they become floats: while the unit works, floats are half as fast.
constexpr int64_t UNIT_GROUPS = 6;

// Sixteen rows times a panel, group after group.
struct UnitSums {
  int64_t columns, stride;
  const int8_t* x;
  const uint8_t* codes;

  template <int FIRST>
  void take(int64_t left, int32_t* sums) {
    tile_zero<FIRST>();
    for (; left > 0; left -= columns, x += columns, codes += columns * PANEL) {
      tile_load<FIRST + 1>(x, stride);
      tile_load<FIRST + 2>(codes, QUAD_BYTES);
      tile_dot_signed_unsigned<FIRST, FIRST + 1, FIRST + 2>();
    }
    tile_store<FIRST>(sums, PANEL * 4);
  }
};

// Sixteen rows from `row` on times a panel: out[16][16], without bias. Codes are unpacked, factors are floats.
template <bool BIASED, bool OFFSETS>
__attribute__((noinline)) static void unit_tile(const GroupedWeight& w, const Factors& factors, const uint8_t* codes,
                                                const Inputs& in, int64_t row, float* out) {
  const int64_t groups = w.groups(), group_columns = w.columns_of(0), last_columns = w.columns_of(groups - 1);
  alignas(64) int32_t sums[UNIT_GROUPS][UNIT_ROWS * PANEL];
  UnitSums unit{unit_columns(w), in.stride, in.row<int8_t>(row), codes};
  const float* scale_at = static_cast<const float*>(factors.scales);
  const float* offset_at = static_cast<const float*>(factors.offsets);
  const float* own = in.scales + row;
  const float* totals = in.sums + row;
  const int32_t* biases = in.biases + row;
  Vec rows[UNIT_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < UNIT_ROWS; ++r) rows[r] = zero();
  for (int64_t first = 0; first < groups; first += UNIT_GROUPS) {
    const int64_t count = groups - first < UNIT_GROUPS ? groups - first : UNIT_GROUPS;
    for (int64_t g = 0; g < count; g += 2) {
      unit.take<0>(first + g + 1 < groups ? group_columns : last_columns, sums[g]);
      if (g + 1 < count) unit.take<4>(first + g + 2 < groups ? group_columns : last_columns, sums[g + 1]);
    }
    for (int64_t g = 0; g < count; ++g) {
      const Vec scale = load(scale_at), offset = OFFSETS ? load(offset_at) : zero();
#pragma GCC unroll 16
      for (int r = 0; r < UNIT_ROWS; ++r) {
        Ints sum = {_mm512_loadu_si512(sums[g] + r * PANEL)};
        if constexpr (BIASED) sum = minus(sum, all(biases[r]));
        rows[r] = fma(to_float(sum), mul(scale, broadcast(own[r])), rows[r]);
        if constexpr (OFFSETS) rows[r] = fma(offset, broadcast(totals[r]), rows[r]);
      }
      scale_at += PANEL, own += in.rows;
      if constexpr (BIASED) biases += in.rows;
      if constexpr (OFFSETS) offset_at += PANEL, totals += in.rows;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < UNIT_ROWS; ++r) store(out + r * PANEL, rows[r]);
}

static inline void unit_tile(const GroupedWeight& w, const Factors& factors, const uint8_t* codes, const Inputs& in,
                             int64_t row, float* out) {
  if (factors.offsets) {
    return w.code_bias ? unit_tile<true, true>(w, factors, codes, in, row, out)
                       : unit_tile<false, true>(w, factors, codes, in, row, out);
  }
  w.code_bias ? unit_tile<true, false>(w, factors, codes, in, row, out)
              : unit_tile<false, false>(w, factors, codes, in, row, out);
}

}  // namespace HF_ISA
