// The heart of the products: some rows of input times some panels, sums in registers.
//
// Each sum is one chain of fused multiply-adds over ascending k, whatever the size of the tile.
#pragma once

#include "dequantize.h"

namespace HF_ISA {

// Some panels times some rows over a block of k.
struct Tile {
  const float* x;
  int64_t x_stride;
  const float* w;
  int64_t w_stride;  // between panels
  int64_t length;
  float* y;
  int64_t y_stride;
  const float* bias;  // null: none, or not yet
  bool first;         // of the blocks: sums start at zero, later they continue those in y
  int columns;        // of the last panel
};

template <int R, int P>
struct Sums {
  Vec of[R][P];

  void start(const Tile& t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const float* y = t.y + r * t.y_stride + p * PANEL;
        of[r][p] = t.first ? zero() : p == P - 1 && t.columns < PANEL ? load_some(y, t.columns) : load(y);
      }
    }
  }

  // One k: each row's input times each panel's sixteen weights.
  void add_products(const float* x, int64_t x_stride, const Vec (&weights)[P]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec input = broadcast(x[r * x_stride]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) of[r][p] = fma(input, weights[p], of[r][p]);
    }
  }

  void finish(const Tile& t) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        float* y = t.y + r * t.y_stride + p * PANEL;
        const float* bias = t.bias + p * PANEL;
        const int columns = p == P - 1 ? t.columns : PANEL;
        if (columns < PANEL) {
          store_some(y, t.bias ? add(of[r][p], load_some(bias, columns)) : of[r][p], columns);
        } else {
          store(y, t.bias ? add(of[r][p], load(bias)) : of[r][p]);
        }
      }
    }
  }
};

// With weights that lie as floats.
template <int R, int P>
static void dense_tile(const Tile& t) {
  Sums<R, P> sums;
  sums.start(t);
  const float* x = t.x;
  const float* w = t.w;
#pragma GCC unroll 2
  for (int64_t k = 0; k < t.length; ++k) {
    Vec weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) weights[p] = load(w + p * t.w_stride + k * PANEL);
    sums.add_products(x + k, t.x_stride, weights);
  }
  sums.finish(t);
}

// With weights that become floats in registers: worth it while few rows share them. All of k at once.
template <Codes CODES, Zeros KIND, int R, int P>
static void packed_tile(const Weight& w, int64_t panel, const Tile& t) {
  const int64_t groups = (w.k + w.group - 1) / w.group;
  const Ints bias = all(w.code_bias);
  const uint8_t* codes[P];
  Group<KIND> own[P];
  for (int p = 0; p < P; ++p) codes[p] = codes_at<CODES>(w, panel + p, 0);
  Sums<R, P> sums;
  sums.start(t);
  walk<CODES>(
      w, 0, w.k,
      [&](int64_t group) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) own[p].read(w, panel + p, group, groups);
      },
      [&](int64_t k) {
        Vec even[P], odd[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const Ints both = load_codes(codes[p] + k / 2 * PANEL);
          even[p] = own[p].value(low_half(both), bias);
          odd[p] = own[p].value(high_half(both), bias);
        }
        sums.add_products(t.x + k, t.x_stride, even);
        sums.add_products(t.x + k + 1, t.x_stride, odd);
      },
      [&](int64_t k) {
        Vec weights[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const Ints code =
              CODES == CODES4 ? low_half(load_codes(codes[p] + k / 2 * PANEL)) : load_codes(codes[p] + k * PANEL);
          weights[p] = own[p].value(code, bias);
        }
        sums.add_products(t.x + k, t.x_stride, weights);
      });
  sums.finish(t);
}

}  // namespace HF_ISA
