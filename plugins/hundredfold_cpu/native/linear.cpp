// Linear layers: y[M, N] = x[M, K] @ w[N, K].T + bias[N].
//
// Each output is one chain of fused multiply-adds over ascending k, started at zero, the bias added last. How a
// product is cut into tiles, blocks and threads, and whether weights lie dense or as codes, changes no bit of it.
#include "tile.h"
#include "words.h"

namespace HF_ISA {

// Rows and panels of a tile: as many sums as registers hold, beside a panel's row and an input. Panels of a tile of
// few rows: a few chains of sums at once, since each waits for itself.
#if HF_ISA_NUMBER >= HF_AVX512
constexpr int ROWS = 8, PANELS = 2, FEW_PANELS = 4;
#elif HF_ISA_NUMBER == HF_AVX2
constexpr int ROWS = 6, PANELS = 1, FEW_PANELS = 2;
#else
constexpr int ROWS = 4, PANELS = 1, FEW_PANELS = 1;
#endif
constexpr int FEW_ROWS = 3;

// Up to so many rows, packed weights become floats in registers; with more, in a cache block, once for all rows.
constexpr int PACKED_ROWS = 2;

// k of a block: a panel's rows and the tile's inputs stay in a first-level cache of 32 KiB.
constexpr int64_t BLOCK = 320;

// Multiplications that are not worth a second thread.
constexpr int64_t SMALL = 1 << 16;

struct Product {
  const Weight* w;
  const float* x;
  int64_t x_stride;
  int64_t m;
  float* y;
  int64_t y_stride;

  Tile tile(int64_t panel, int count, int64_t row, int64_t from, int64_t to) const {
    const int64_t end = (panel + count) * PANEL;
    Tile t;
    t.x = x + row * x_stride + from;
    t.x_stride = x_stride;
    t.w = static_cast<const float*>(w->values) + (panel * w->k + from) * PANEL;
    t.w_stride = w->k * PANEL;
    t.length = to - from;
    t.y = y + row * y_stride + panel * PANEL;
    t.y_stride = y_stride;
    t.bias = to == w->k && w->bias ? w->bias + panel * PANEL : nullptr;
    t.first = from == 0;
    t.columns = end <= w->n ? PANEL : int(PANEL - (end - w->n));
    return t;
  }
};

// Calls one of f(size<1>), f(size<2>), ... f(size<MOST>).
template <int R>
struct Size {
  static constexpr int value = R;
};
template <int MOST, class F>
static inline void with_size(int64_t rows, F f) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return with_size<MOST - 1>(rows, f);
  }
  f(Size<MOST>());
}

// A tile of at most MOST rows.
template <int MOST, int P>
__attribute__((noinline)) static void dense_rows(int64_t rows, const Tile& t) {
  with_size<MOST>(rows, [&](auto size) { dense_tile<decltype(size)::value, P>(t); });
}

// All rows times P panels, block by block.
template <Codes CODES, Zeros KIND, int MOST, int P>
static void blocked(const Product& job, int64_t panel) {
  const Weight& w = *job.w;
  const int64_t blocks = (w.k + BLOCK - 1) / BLOCK;
  const int64_t step = ((w.k + blocks - 1) / blocks + 1) / 2 * 2;
  alignas(64) float unpacked[CODES == DENSE ? 1 : P * BLOCK * PANEL];
  for (int64_t from = 0; from < w.k; from += step) {
    const int64_t to = from + step < w.k ? from + step : w.k;
    if constexpr (CODES != DENSE) {
      for (int p = 0; p < P; ++p) dequantize<CODES, KIND>(w, panel + p, from, to, unpacked + p * BLOCK * PANEL);
    }
    for (int64_t row = 0; row < job.m; row += MOST) {
      Tile t = job.tile(panel, P, row, from, to);
      if constexpr (CODES != DENSE) t.w = unpacked, t.w_stride = BLOCK * PANEL;
      dense_rows<MOST, P>(job.m - row < MOST ? job.m - row : MOST, t);
    }
  }
}

// One or two rows times some panels of packed weights.
template <Codes CODES, Zeros KIND>
static void packed(const Product& job, int64_t panel) {
  const Tile t = job.tile(panel, FEW_PANELS, 0, 0, job.w->k);
  with_size<PACKED_ROWS>(job.m, [&](auto size) {
    packed_tile<CODES, KIND, decltype(size)::value, FEW_PANELS>(*job.w, panel, t);
  });
}

// Calls wide(panel) for each P panels, narrow(panel) for each that is left.
template <int P, class Wide, class Narrow>
static inline void for_panels(const Product& job, Wide wide, Narrow narrow) {
  const int64_t count = (job.w->n + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(dynamic, 1) if (job.m * job.w->n * job.w->k > SMALL)
  for (int64_t panel = 0; panel < count; panel += P) {
    if (panel + P <= count) {
      wide(panel);
    } else {
      for (int64_t p = panel; p < count; ++p) narrow(p);
    }
  }
}

template <Codes CODES, Zeros KIND>
static void multiply(const Product& job) {
  const auto narrow = [&](int64_t panel) { blocked<CODES, KIND, ROWS, 1>(job, panel); };
  if constexpr (CODES == DENSE) {
    if (job.m <= FEW_ROWS) {
      const auto wide = [&](int64_t panel) { blocked<CODES, KIND, FEW_ROWS, FEW_PANELS>(job, panel); };
      return for_panels<FEW_PANELS>(job, wide, narrow);
    }
  } else if (job.m <= PACKED_ROWS) {
    return for_panels<FEW_PANELS>(job, [&](int64_t panel) { packed<CODES, KIND>(job, panel); }, narrow);
  }
  for_panels<PANELS>(job, [&](int64_t panel) { blocked<CODES, KIND, ROWS, PANELS>(job, panel); }, narrow);
}

template <Codes CODES>
static void multiply_codes(const Product& job) {
  switch (job.w->zeros_kind) {
    case NO_ZEROS: return multiply<CODES, NO_ZEROS>(job);
    case POINTS: return multiply<CODES, POINTS>(job);
    case OFFSETS: return multiply<CODES, OFFSETS>(job);
    case EXACT: return multiply<CODES, EXACT>(job);
  }
}

}  // namespace HF_ISA

HF_EXPORT(linear)(const Weight* w, const float* x, int64_t x_stride, int64_t m, float* y, int64_t y_stride) {
  using namespace HF_ISA;
  const Product job{w, x, x_stride, m, y, y_stride};
  switch (w->codes) {
    case DENSE: return multiply<DENSE, NO_ZEROS>(job);
    case CODES4: return multiply_codes<CODES4>(job);
    case CODES8: return multiply_codes<CODES8>(job);
  }
}

HF_WORDS(linear)
