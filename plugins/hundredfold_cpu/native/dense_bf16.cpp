// Linear layers in bfloat16: y[M, N] = x[M, K] @ w[N, K].T + bias[N].
//
// dense.h says what each bit is. How a product is cut into tiles and threads changes none of them.
#include <cstring>

#include "team_panels.h"
#include "words.h"
#include "workspace.h"
#if HF_ISA_NUMBER >= HF_AVX512AMX
#include "dense_unit.h"
#else
#include "dense_tile.h"
#endif

namespace HF_ISA {

// Multiplications that are not worth a second thread, and those that a thread should get at a time.
constexpr int64_t SMALL = 1 << 17, SHARE = 1 << 17;

// Up to so many rows each panel is read once, and memory is the limit.
constexpr int64_t FEW_ROWS = 8;

// Bytes of input that stay in a second-level cache while a thread goes through its panels.
constexpr int64_t INPUT_BYTES = 1 << 20, LEAST_ROWS = 32;

#if HF_ISA_NUMBER >= HF_AVX512AMX
using Input = uint16_t;
static inline bool as_they_are(int64_t k) { return k % BLOCK == 0; }
#else
using Input = float;
static inline bool as_they_are(int64_t) { return false; }
#endif

static inline void read_row(const uint16_t* x, int64_t k, int64_t padded, uint16_t* out) {
  std::memcpy(out, x, size_t(k) * sizeof(uint16_t));
  std::memset(out + k, 0, size_t(padded - k) * sizeof(uint16_t));
}
static inline void read_row(const uint16_t* x, int64_t k, int64_t padded, float* out) {
  for (int64_t i = 0; i < padded; i += LANES) store(out + i, i < k ? get_part(x + i, k - i) : zero());
}

using Product = DenseProduct<Input>;

// Panels, one after the other for few rows.
static void compute_panels(const Product& job, int64_t first, int64_t end) {
  const TinyIsZero flush;
#if HF_ISA_NUMBER >= HF_AVX512AMX
  if (job.m <= FEW_ROWS) return unit_few(job, first, end);
  for (; first + UNIT_TILES <= end; first += UNIT_TILES) unit_rows<UNIT_TILES>(job, first);
  for (; first < end; ++first) unit_rows<1>(job, first);
#else
  for (; first < end; ++first) dense_rows<TILE_ROWS>(job, first, 0);
#endif
}

#if HF_ISA_NUMBER >= HF_AVX512AMX
constexpr int64_t TOGETHER = UNIT_TILES;  // panels

// Multiplications that a thread of a team gets at a time: the unit is as long at work for few rows as for one.
static int64_t team_share(int64_t m) { return m <= FEW_ROWS ? SHARE / 2 * m : 4 * SHARE; }
#else
constexpr int64_t TOGETHER = 1;

static int64_t team_share(int64_t m) { return m <= FEW_ROWS ? SHARE / 2 : SHARE; }
#endif

static void multiply(const Product& job) {
  const int64_t panels = job.w.panels();
  const bool few = job.m <= FEW_ROWS, worth_it = job.m * job.w.n * job.w.k > SMALL;
  if (in_team()) {
    return panels_by_team(job, few ? 1 : TOGETHER, team_share(job.m), compute_panels);
  }
  if (few) {
    const int64_t at_once = 1 + SHARE / (job.m * job.w.k * PANEL);
#pragma omp parallel for schedule(dynamic, 1) if (worth_it)
    for (int64_t first = 0; first < panels; first += at_once)
      compute_panels(job, first, first + at_once < panels ? first + at_once : panels);
    return;
  }
  // Many at first, so that a thread knows what comes next, and few at last, so that nobody waits long.
#pragma omp parallel for schedule(guided) if (worth_it)
  for (int64_t first = 0; first < panels; first += TOGETHER)
    compute_panels(job, first, first + TOGETHER < panels ? first + TOGETHER : panels);
}

// `rows` as the instruction set reads them, whole blocks each: where they lie, or in memory to work in.
static const Input* inputs_of(const DenseWeight& w, const uint16_t* x, int64_t x_stride, int64_t rows, int64_t& stride) {
  const int64_t padded = w.blocks() * BLOCK;
  stride = x_stride;
  if (as_they_are(w.k)) return reinterpret_cast<const Input*>(x);
  // Few rows each thread of a team takes for itself, which is quicker than waiting for the others.
  const bool shared = in_team() && rows > FEW_ROWS;
  const size_t bytes = size_t(rows * padded) * sizeof(Input);
  Input* inputs = static_cast<Input*>(shared ? team_workspace(bytes) : workspace(Workspace::INPUTS, bytes));
  const auto read = [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) read_row(x + row * x_stride, w.k, padded, inputs + row * padded);
  };
  stride = padded;
  if (shared) {
    by_team(rows, 1 + SMALL / 16 / w.k, read);
  } else {
#pragma omp parallel for if (rows > FEW_ROWS && rows * w.k > SMALL / 8)
    for (int64_t row = 0; row < rows; ++row) read(row, row + 1);
  }
  return inputs;
}

// As many rows at a time as a cache keeps.
static void dense(const DenseWeight& w, const uint16_t* x, int64_t x_stride, int64_t m, uint16_t* y, int64_t y_stride) {
  const int64_t bytes = w.blocks() * BLOCK * int64_t(sizeof(Input)), fit = INPUT_BYTES / bytes / LEAST_ROWS * LEAST_ROWS;
  const int64_t most = fit < LEAST_ROWS ? LEAST_ROWS : fit;
  for (int64_t first = 0; first < m; first += most) {
    const int64_t rows = first + most < m ? most : m - first;
    Product job{w, nullptr, 0, rows, y + first * y_stride, y_stride};
    job.x = inputs_of(w, x + first * x_stride, x_stride, rows, job.x_stride);
    multiply(job);
  }
}

}  // namespace HF_ISA

HF_EXPORT(dense_bf16)
(const DenseWeight* w, const uint16_t* x, int64_t x_stride, int64_t m, uint16_t* y, int64_t y_stride) {
  HF_ISA::dense(*w, x, x_stride, m, y, y_stride);
}
HF_WORDS(dense_bf16)
