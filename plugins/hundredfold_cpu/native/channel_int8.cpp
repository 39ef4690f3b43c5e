// Linear layers of whole numbers: y[M, N] = (rotated x as int8 by row) @ (int8 weights by output feature).T + bias[N].
//
// Sums are whole numbers of 32 bits, so neither tiles nor threads nor instruction sets change a bit. Each becomes a
// float once, times the product of both scales, plus the bias, every step rounded.
#include <cstdlib>
#include <cstring>

#include "hadamard.h"
#include "int8_lanes.h"
#include "vec_math.h"
#include "weight.h"
#include "words.h"

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
};

namespace HF_ISA {

static inline void read_row(const float* x, int64_t k, float* out) { std::memcpy(out, x, size_t(k) * sizeof(float)); }
static inline void read_row(const uint16_t* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) {
    const uint32_t bits = uint32_t(x[i]) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

static inline int64_t up(int64_t k, int64_t multiple) { return (k + multiple - 1) / multiple * multiple; }

// A row as codes[up(k, 16)]; returns its scale. `scratch` holds up(k, 16) floats.
template <class T>
static float quantize_row(const T* x, int64_t k, int64_t block, float norm, float* scratch, Code* codes) {
  const int64_t padded = up(k, LANES);
  read_row(x, k, scratch);
  for (int64_t i = k; i < padded; ++i) scratch[i] = 0;
  rotate(scratch, k, block, norm);
  const uint32_t bits = largest_bits(scratch, padded);
  float largest;
  std::memcpy(&largest, &bits, 4);
  if (bits < INFINITE && largest >= 0x1p-96f) {
    to_codes(scratch, padded, 127.0f / largest, codes);
    return largest / 127.0f;
  }
  for (int64_t i = 0; i < padded; ++i) codes[i] = Code(SHIFT);
  return bits < INFINITE ? 0.0f : __builtin_nanf("");
}

// A product whose input lies quantized.
struct Product {
  const ChannelWeight& w;
  const Code* x;
  int64_t x_stride;
  const float* scales;  // of the rows
  int64_t m;
  void* y;  // floats or bfloat16
  int64_t y_stride;
  bool half;
  int64_t steps;  // ceil(k / STEP)

  void store_row(int64_t row, int64_t panel, Vec v) const {
    const int64_t n = panel * PANEL, at = row * y_stride + n;
    const int columns = w.n - n < PANEL ? int(w.n - n) : PANEL;
    if (w.bias) v = add(v, columns < PANEL ? load_some(w.bias + n, columns) : load(w.bias + n));
    if (half) {
      uint16_t lanes[LANES];
      store_bf16(lanes, v);
      std::memcpy(static_cast<uint16_t*>(y) + at, lanes, size_t(columns) * sizeof(uint16_t));
    } else if (columns < PANEL) {
      store_some(static_cast<float*>(y) + at, v, columns);
    } else {
      store(static_cast<float*>(y) + at, v);
    }
  }
};

// R rows times P panels. `wide` holds the panels' codes as 16 bits; null: they are read where they lie.
template <int R, int P, bool WIDE>
static void tile(const Product& job, int64_t panel, int64_t row, const int16_t* wide) {
  const ChannelWeight& w = job.w;
  const int64_t width = job.steps * PANEL * STEP;
  const int8_t* codes = w.codes + panel * width;
  const Code* x = job.x + row * job.x_stride;
  Sum sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sums[r][p] = load_sum(w.correction + (panel + p) * PANEL);
  }
#pragma GCC unroll 2
  for (int64_t step = 0; step < job.steps; ++step) {
    Weights weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const int64_t at = p * width + step * PANEL * STEP;
      if constexpr (WIDE) {
        weights[p] = from_wide(wide + at);
      } else {
        weights[p] = from_codes(codes + at);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Input input = broadcast_input(x + r * job.x_stride + step * STEP);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[r][p] = dot(sums[r][p], weights[p], input);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const Vec scale = broadcast(job.scales[row + r]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      job.store_row(row + r, panel + p, mul(to_float(sums[r][p]), mul(load(w.scales + (panel + p) * PANEL), scale)));
    }
  }
}

// All rows times P panels, in tiles of R and, for what is left, of fewer.
template <int R, int P, bool WIDE>
static int64_t tiles(const Product& job, int64_t panel, int64_t row, const int16_t* wide) {
  for (; row + R <= job.m; row += R) tile<R, P, WIDE>(job, panel, row, wide);
  if constexpr (R > 1) return tiles<R / 2, P, WIDE>(job, panel, row, wide);
  return row;
}

// Memory that stays with its thread.
struct Buffer {
  void* data = nullptr;
  int64_t size = 0;
  ~Buffer() { std::free(data); }

  void* of(int64_t bytes) {
    if (bytes > size) {
      std::free(data);
      size = up(bytes, 4096);
      data = std::aligned_alloc(64, size_t(size));
      if (!data) std::abort();
    }
    return data;
  }
};
static thread_local Buffer own_buffer;   // a panel's codes as 16 bits, or a row as floats
static thread_local Buffer input_buffer;  // of the thread that calls: the input as codes, and its scales

constexpr int FEW_ROWS = 3;
// Rows from which widening a panel once is less work than doing so in every tile.
constexpr int64_t WIDE_ROWS = 2 * ROWS;
// Multiplications that are not worth a second thread.
constexpr int64_t SMALL = 1 << 17;

template <int P>
static void rows_of(const Product& job, int64_t panel) {
  if constexpr (WIDENS) {
    if (job.m >= WIDE_ROWS) {
      const int64_t codes = P * job.steps * PANEL * STEP;
      int16_t* wide = static_cast<int16_t*>(own_buffer.of(codes * int64_t(sizeof(int16_t))));
      const int8_t* from = job.w.codes + panel * job.steps * PANEL * STEP;
      for (int64_t i = 0; i < codes; i += PANEL * STEP) widen(from + i, wide + i);
      tiles<ROWS, P, true>(job, panel, 0, wide);
      return;
    }
  }
  tiles<ROWS, P, false>(job, panel, 0, nullptr);
}

// Calls wide(panel) for each P panels, narrow(panel) for each that is left.
template <int P, class Wide, class Narrow>
static inline void for_panels(const Product& job, Wide wide, Narrow narrow) {
  const int64_t panels = (job.w.n + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(dynamic, 1) if (job.m * job.w.n * job.w.k > SMALL)
  for (int64_t panel = 0; panel < panels; panel += P) {
    if (panel + P <= panels) {
      wide(panel);
    } else {
      for (int64_t p = panel; p < panels; ++p) narrow(p);
    }
  }
}

static void multiply(const Product& job) {
  if (job.m <= FEW_ROWS) {
    const auto wide = [&](int64_t panel) { tiles<FEW_ROWS, FEW_PANELS, false>(job, panel, 0, nullptr); };
    const auto narrow = [&](int64_t panel) { tiles<FEW_ROWS, 1, false>(job, panel, 0, nullptr); };
    return for_panels<FEW_PANELS>(job, wide, narrow);
  }
  for_panels<PANELS>(job, [&](int64_t panel) { rows_of<PANELS>(job, panel); },
                     [&](int64_t panel) { rows_of<1>(job, panel); });
}

template <class T>
static void channel_int8(const ChannelWeight& w, const T* x, int64_t x_stride, int64_t m, T* y, int64_t y_stride) {
  const int64_t padded = up(w.k, LANES);
  float* scales = static_cast<float*>(input_buffer.of(m * (padded * int64_t(sizeof(Code)) + int64_t(sizeof(float)))));
  Code* codes = reinterpret_cast<Code*>(scales + m);
#pragma omp parallel for if (m > 1 && m * w.k > SMALL / 8)
  for (int64_t row = 0; row < m; ++row) {
    float* scratch = static_cast<float*>(own_buffer.of(padded * int64_t(sizeof(float))));
    scales[row] = quantize_row(x + row * x_stride, w.k, w.block, w.norm, scratch, codes + row * padded);
  }
  multiply({w, codes, padded, scales, m, y, y_stride, sizeof(T) == 2, (w.k + STEP - 1) / STEP});
}

}  // namespace HF_ISA

HF_EXPORT(channel_int8_f32)
(const ChannelWeight* w, const float* x, int64_t x_stride, int64_t m, float* y, int64_t y_stride) {
  HF_ISA::channel_int8(*w, x, x_stride, m, y, y_stride);
}
HF_WORDS(channel_int8_f32)

HF_EXPORT(channel_int8_bf16)
(const ChannelWeight* w, const uint16_t* x, int64_t x_stride, int64_t m, uint16_t* y, int64_t y_stride) {
  HF_ISA::channel_int8(*w, x, x_stride, m, y, y_stride);
}
HF_WORDS(channel_int8_bf16)

// codes[n][k], rows `stride` apart, to panels, once at load; `correction` has room for whole panels.
HF_EXPORT(pack_channel_int8)
(const int8_t* codes, int64_t stride, int64_t n, int64_t k, int8_t* out, int32_t* correction) {
  using namespace HF_ISA;
  const int64_t panels = (n + PANEL - 1) / PANEL, steps = (k + STEP - 1) / STEP;
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t panel = 0; panel < panels; ++panel) {
    int8_t* to = out + panel * steps * PANEL * STEP;
    for (int64_t c = 0; c < PANEL; ++c) {
      const int64_t row = panel * PANEL + c;
      int32_t sum = 0;
      for (int64_t i = 0; i < steps * STEP; ++i) {
        const int8_t code = row < n && i < k ? codes[row * stride + i] : int8_t(0);
        to[(i / STEP * PANEL + c) * STEP + i % STEP] = code;
        sum += code;
      }
      correction[row] = -SHIFT * sum;
    }
  }
}
