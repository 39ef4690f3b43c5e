// Linear layers: y[M, N] = x[M, K] @ w[N, K].T + bias[N].
//
// Each output is one chain of fused multiply-adds over ascending k, started at zero, the bias added last. How a
// product is cut into tiles, blocks and threads, and whether weights lie dense or as codes, changes no bit of it.
#include "dequantize.h"

namespace HF_ISA {

// Output rows and panels of a tile: as many sums as registers hold, beside a panel's row and an input.
#if HF_ISA_NUMBER == HF_AVX512
constexpr int ROWS = 8, PANELS = 2;
#else
constexpr int ROWS = 6, PANELS = 1;
#endif

// k of a block: a panel's rows and the tile's inputs stay in a first-level cache of 32 KiB.
constexpr int64_t BLOCK = 320;

struct Product {
  const Weight* w;
  const float* x;
  int64_t x_stride;
  int64_t m;
  float* y;
  int64_t y_stride;
};

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
  bool first;         // of the blocks
  int columns;        // of the last panel
};

template <int R, int P>
static inline void compute(const Tile& t) {
  Vec sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const float* y = t.y + r * t.y_stride + p * PANEL;
      sums[r][p] = t.first ? zero() : p == P - 1 && t.columns < PANEL ? load_some(y, t.columns) : load(y);
    }
  }
  const float* x = t.x;
  const float* w = t.w;
#pragma GCC unroll 2
  for (int64_t k = 0; k < t.length; ++k) {
    Vec row[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) row[p] = load(w + p * t.w_stride + k * PANEL);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec input = broadcast(x[r * t.x_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[r][p] = fma(input, row[p], sums[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      float* y = t.y + r * t.y_stride + p * PANEL;
      const int columns = p == P - 1 ? t.columns : PANEL;
      Vec sum = sums[r][p];
      if (t.bias) sum = add(sum, columns < PANEL ? load_some(t.bias + p * PANEL, columns) : load(t.bias + p * PANEL));
      if (columns < PANEL) {
        store_some(y, sum, columns);
      } else {
        store(y, sum);
      }
    }
  }
}

template <int P>
__attribute__((noinline)) static void compute_rows(int rows, const Tile& t) {
  switch (rows) {
    case 1: return compute<1, P>(t);
    case 2: return compute<2, P>(t);
    case 3: return compute<3, P>(t);
    case 4: return compute<4, P>(t);
    case 5: return compute<5, P>(t);
    case 6: return compute<6, P>(t);
#if HF_ISA_NUMBER == HF_AVX512
    case 7: return compute<7, P>(t);
    case 8: return compute<8, P>(t);
#endif
  }
}

// All rows times P panels.
template <Codes CODES, Zeros KIND, bool HALF, int P>
static void panels(const Product& job, int64_t panel) {
  const Weight& w = *job.w;
  const int64_t blocks = (w.k + BLOCK - 1) / BLOCK;
  const int64_t step = ((w.k + blocks - 1) / blocks + 1) / 2 * 2;
  const int64_t end = (panel + P) * PANEL;
  alignas(64) float unpacked[CODES == DENSE ? 1 : P * BLOCK * PANEL];
  Tile t;
  t.x_stride = job.x_stride;
  t.y_stride = job.y_stride;
  t.columns = end <= w.n ? PANEL : int(PANEL - (end - w.n));
  for (int64_t from = 0; from < w.k; from += step) {
    const int64_t to = from + step < w.k ? from + step : w.k;
    if constexpr (CODES == DENSE) {
      t.w = static_cast<const float*>(w.values) + (panel * w.k + from) * PANEL;
      t.w_stride = w.k * PANEL;
    } else {
      for (int p = 0; p < P; ++p) dequantize<CODES, KIND, HALF>(w, panel + p, from, to, unpacked + p * BLOCK * PANEL);
      t.w = unpacked;
      t.w_stride = BLOCK * PANEL;
    }
    t.first = from == 0;
    t.length = to - from;
    t.bias = to == w.k && w.bias ? w.bias + panel * PANEL : nullptr;
    for (int64_t row = 0; row < job.m; row += ROWS) {
      t.x = job.x + row * job.x_stride + from;
      t.y = job.y + row * job.y_stride + panel * PANEL;
      compute_rows<P>(int(job.m - row < ROWS ? job.m - row : ROWS), t);
    }
  }
}

template <Codes CODES, Zeros KIND, bool HALF>
static void multiply(const Product& job) {
  const int64_t count = (job.w->n + PANEL - 1) / PANEL;
  const int64_t tasks = (count + PANELS - 1) / PANELS;
#pragma omp parallel for schedule(dynamic, 1) if (job.m * job.w->n * job.w->k > 1 << 16)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t panel = task * PANELS;
    if (panel + PANELS <= count) {
      panels<CODES, KIND, HALF, PANELS>(job, panel);
    } else {
      for (int64_t p = panel; p < count; ++p) panels<CODES, KIND, HALF, 1>(job, p);
    }
  }
}

template <Codes CODES, bool HALF>
static void multiply_kind(const Product& job) {
  switch (job.w->zeros_kind) {
    case NO_ZEROS: return multiply<CODES, NO_ZEROS, HALF>(job);
    case POINTS: return multiply<CODES, POINTS, HALF>(job);
    case OFFSETS: return multiply<CODES, OFFSETS, HALF>(job);
  }
}

}  // namespace HF_ISA

HF_EXPORT(linear)(const Weight* w, const float* x, int64_t x_stride, int64_t m, float* y, int64_t y_stride) {
  using namespace HF_ISA;
  const Product job{w, x, x_stride, m, y, y_stride};
  switch (w->codes) {
    case DENSE: return multiply<DENSE, NO_ZEROS, false>(job);
    case CODES4: return w->half ? multiply_kind<CODES4, true>(job) : multiply_kind<CODES4, false>(job);
    case CODES8: return w->half ? multiply_kind<CODES8, true>(job) : multiply_kind<CODES8, false>(job);
  }
}
