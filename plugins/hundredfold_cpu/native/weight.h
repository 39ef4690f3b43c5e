// A linear layer's weight as it lies packed: panels of sixteen output features, so that vectors run across outputs.
//
// Element (n, k) is in panel n / 16, column n % 16. What a panel holds past the last output feature is zero.
//   dense       float [panels][k][16]
//   8-bit codes uint8 [panels][k][16]
//   4-bit codes uint8 [panels][ceil(k / 2)][16]: the low half is the even k
//   scales, zeros  half or float [panels][groups][16]
#pragma once

#include <cstdint>

constexpr int PANEL = 16;

enum Codes : int32_t { DENSE = 0, CODES4 = 4, CODES8 = 8 };

enum Zeros : int32_t {
  NO_ZEROS = 0,  // (code - bias) * scale
  POINTS = 1,    // (code - zero) * scale
  OFFSETS = 2,   // code * scale + zero, the product rounded
  EXACT = 3,     // the same where the product needs no rounding: scales of at most 16 bits, as halves are
};

// Mirrored by hundredfold_cpu/packed.py.
struct Weight {
  const void* values;
  const void* scales;
  const void* zeros;
  const float* bias;  // [n] or null
  int64_t n;
  int64_t k;
  int64_t group;
  int32_t codes;
  int32_t zeros_kind;
  int32_t code_bias;  // what was added to signed codes
  int32_t half;       // scales and zeros are half precision
};
