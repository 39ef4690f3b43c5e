// Integers by channel as they lie, and a product of such with rows that are codes already.
#pragma once

#include "int8_lanes.h"
#include "vec_math.h"
#include "weight.h"

// Mirrored by hundredfold_cpu/channel_int8.py.
struct ChannelWeight {
  const int8_t* codes;        // [panels][ceil(k / STEP)][16][STEP], zero past n and k
  const float* scales;        // [panels][16]
  const int32_t* correction;  // [panels][16]: what sums start at
  const float* bias;          // [n] or null
  int64_t n;
  int64_t k;
  int64_t block;  // of the rotation; 1 for none
  float norm;     // 1 / sqrt(block)

  int64_t panels() const { return (n + PANEL - 1) / PANEL; }
};

namespace HF_ISA {

template <class T>
struct ChannelProduct {
  const ChannelWeight& w;
  const Code* x;  // rows of codes
  int64_t x_stride;
  const float* scales;  // of the rows
  int64_t m;
  T* y;
  int64_t y_stride;

  int64_t steps() const { return (w.k + STEP - 1) / STEP; }
  int64_t width() const { return steps() * PANEL * STEP; }  // codes of a panel

  // A row's sums of a panel as floats, `scale` being the row's.
  Vec outputs(int64_t panel, Sum sums, Vec scale) const {
    const int64_t first = panel * PANEL;
    const Vec v = mul(to_float(sums), mul(load(w.scales + first), scale));
    return w.bias ? add(v, get_part(w.bias + first, w.n - first)) : v;
  }
  void put_row(int64_t row, int64_t panel, Sum sums, Vec scale) const {
    const int64_t first = panel * PANEL;
    put_part(y + row * y_stride + first, outputs(panel, sums, scale), w.n - first);
  }
};

}  // namespace HF_ISA
