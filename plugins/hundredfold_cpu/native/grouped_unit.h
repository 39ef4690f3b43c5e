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

// Sixteen rows times a panel, group after group.
struct UnitGroups {
  int64_t columns, stride;
  const int8_t* x;
  const uint8_t* codes;

  template <bool ODD>
  void multiply(int64_t left) {
    constexpr int FIRST = ODD ? 4 : 0;
    tile_zero<FIRST>();
    for (; left > 0; left -= columns, x += columns, codes += columns * PANEL) {
      tile_load<FIRST + 1>(x, stride);
      tile_load<FIRST + 2>(codes, QUAD_BYTES);
      tile_dot_signed_unsigned<FIRST, FIRST + 1, FIRST + 2>();
    }
  }
  template <bool ODD>
  static void put(int32_t* sums) {
    tile_store<ODD ? 4 : 0>(sums, PANEL * 4);
  }
};

// Sixteen rows from `row` on times a panel: out[16][16], without bias. Codes are unpacked, factors are floats.
template <bool BIASED, bool OFFSETS>
__attribute__((noinline)) static void unit_tile(const GroupedWeight& w, const Factors& factors, const uint8_t* codes,
                                                const Inputs& in, int64_t row, float* out) {
  const int64_t groups = w.groups();
  alignas(64) int32_t sums[2][UNIT_ROWS * PANEL];
  UnitGroups unit{unit_columns(w), in.stride, in.row<int8_t>(row), codes};
  const float* scales = static_cast<const float*>(factors.scales);
  const float* offsets = static_cast<const float*>(factors.offsets);
  Vec rows[UNIT_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < UNIT_ROWS; ++r) rows[r] = zero();
  // The unit is two groups ahead of the floats.
  const auto take = [&](int64_t group, auto odd) {
    constexpr bool ODD = decltype(odd)::value;
    if (group + 1 < groups) UnitGroups::put<!ODD>(sums[!ODD]);
    if (group + 2 < groups) unit.multiply<ODD>(w.columns_of(group + 2));
    const Vec scale = load(scales + group * PANEL), offset = OFFSETS ? load(offsets + group * PANEL) : zero();
    const float* own = in.scales + group * in.rows + row;
    const float* totals = in.sums + group * in.rows + row;
    const int32_t* biases = in.biases + group * in.rows + row;
#pragma GCC unroll 16
    for (int r = 0; r < UNIT_ROWS; ++r) {
      Ints sum = {_mm512_loadu_si512(sums[ODD] + r * PANEL)};
      if constexpr (BIASED) sum = minus(sum, all(biases[r]));
      rows[r] = fma(to_float(sum), mul(scale, broadcast(own[r])), rows[r]);
      if constexpr (OFFSETS) rows[r] = fma(offset, broadcast(totals[r]), rows[r]);
    }
  };
  unit.multiply<false>(w.columns_of(0));
  UnitGroups::put<false>(sums[0]);
  if (groups > 1) unit.multiply<true>(w.columns_of(1));
  for (int64_t group = 0; group < groups; group += 2) {
    take(group, False());
    if (group + 1 < groups) take(group + 1, True());
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
