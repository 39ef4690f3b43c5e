// Grouped integers as they lie packed for inputs in int8: panels of sixteen outputs, four k of an output side by side.
//
// A group's k are cut in fours, "quads"; the last of a group is filled up with zeros, and so is the last panel.
//   8-bit codes uint8 [panels][quads][16][4]
//   4-bit codes uint8 [panels][quads][8][4]: the low half is of outputs 0 to 7, the high half of 8 to 15
//   scales, offsets  half or float [panels][groups][16]
#pragma once

#include <cstdint>

#include "weight.h"

constexpr int QUAD = 4;
constexpr int QUAD_BYTES = PANEL * QUAD;  // of a panel, unpacked

// Mirrored by hundredfold_cpu/grouped.py.
struct GroupedWeight {
  const uint8_t* codes;
  const void* scales;
  const void* offsets;  // null: none
  const float* bias;    // [n] or null
  int64_t n;
  int64_t k;
  int64_t group;
  int32_t bits;       // 4 or 8
  int32_t code_bias;  // to be subtracted from each code
  int32_t half;       // scales and offsets are half precision

  int64_t groups() const { return (k + group - 1) / group; }
  int64_t panels() const { return (n + PANEL - 1) / PANEL; }
  int64_t columns_of(int64_t g) const { return (g + 1) * group <= k ? group : k - g * group; }
  int64_t quads_of(int64_t g) const { return (columns_of(g) + QUAD - 1) / QUAD; }
  int64_t quads() const { return (groups() - 1) * quads_of(0) + quads_of(groups() - 1); }
};
