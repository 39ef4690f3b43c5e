// Linear layers of whole numbers: y[M, N] = (rotated x as int8 by row) @ (int8 weights by output feature).T + bias[N].
//
// Sums are whole numbers of 32 bits, so neither tiles nor threads nor instruction sets change a bit. Each becomes a
// float once, times the product of both scales, plus the bias, every step rounded.
#include <cstring>

#include "channel_tile.h"
#if HF_ISA_NUMBER >= HF_AVX512AMX
#include "channel_unit.h"
#endif
#include "hadamard.h"
#include "team_panels.h"
#include "words.h"

namespace HF_ISA {

static inline void read_row(const float* x, int64_t k, float* out) { std::memcpy(out, x, size_t(k) * sizeof(float)); }
static inline void read_row(const uint16_t* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) {
    const uint32_t bits = uint32_t(x[i]) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

// Codes and rows that are read at a time: codes past the last column of a row are zero, past the last row anything.
#if HF_ISA_NUMBER >= HF_AVX512AMX
constexpr int64_t AT_ONCE = UNIT_BYTES, ROWS_AT_ONCE = 2 * UNIT_ROWS;
#else
constexpr int64_t AT_ONCE = LANES, ROWS_AT_ONCE = 1;
#endif

// From one row of codes to the next: an odd number of lines, so that rows do not share a set of the cache.
static inline int64_t codes_stride(int64_t k) {
  const int64_t codes = up(k, AT_ONCE);
  return AT_ONCE == 64 && codes / 64 % 2 == 0 ? codes + 64 : codes;
}

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

// Multiplications that are not worth a second thread.
constexpr int64_t SMALL = 1 << 17;

// Few rows times a panel, as a team computes them.
template <class T>
struct FewRows : ChannelProduct<T> {
  void panel(int64_t panel) const { this->m <= FEW_ROWS ? channel_few(*this, panel) : channel_rows<1>(*this, panel); }
};

// Calls wide(panel) for each P panels, narrow(panel) for each that is left.
template <int P, class T, class Wide, class Narrow>
static inline void for_panels(const ChannelProduct<T>& job, Wide wide, Narrow narrow) {
  const int64_t panels = job.w.panels();
  // Many at first, so that a thread knows what comes next, and few at last, so that nobody waits long.
#pragma omp parallel for schedule(guided) if (job.m * job.w.n * job.w.k > SMALL)
  for (int64_t panel = 0; panel < panels; panel += P) {
    if (panel + P <= panels) {
      wide(panel);
    } else {
      for (int64_t p = panel; p < panels; ++p) narrow(p);
    }
  }
}

template <class T>
static void multiply(const ChannelProduct<T>& job) {
  const bool worth_it = job.m * job.w.n * job.w.k > SMALL;
  if (leads_team() && worth_it) {
    if (const auto part = TeamPanels<FewRows<T>>::of({job}); part.fits()) return part.run();
  }
  if (job.m <= FEW_ROWS) {
    const int64_t panels = job.w.panels(), at_once = 1 + SMALL / (job.m * job.w.k * PANEL);
#pragma omp parallel for schedule(dynamic, at_once) if (worth_it)
    for (int64_t panel = 0; panel < panels; ++panel) channel_few(job, panel);
    return;
  }
#if HF_ISA_NUMBER >= HF_AVX512AMX
  if (job.m >= UNIT_LEAST) {
    return for_panels<UNIT_TILES>(job, [&](int64_t panel) { unit_rows<UNIT_TILES>(job, panel); },
                                  [&](int64_t panel) { unit_rows<1>(job, panel); });
  }
#endif
  for_panels<PANELS>(job, [&](int64_t panel) { channel_rows<PANELS>(job, panel); },
                     [&](int64_t panel) { channel_rows<1>(job, panel); });
}

template <class T>
static void channel_int8(const ChannelWeight& w, const T* x, int64_t x_stride, int64_t m, T* y, int64_t y_stride) {
  const int64_t padded = up(w.k, LANES), stride = codes_stride(w.k), rows = up(m, ROWS_AT_ONCE);
  const size_t bytes = size_t(rows) * (size_t(stride) * sizeof(Code) + sizeof(float));
  Code* codes = static_cast<Code*>(workspace(Workspace::INPUTS, bytes));
  float* scales = reinterpret_cast<float*>(codes + rows * stride);
#pragma omp parallel for if (m > FEW_ROWS && m * w.k > SMALL / 8)
  for (int64_t row = 0; row < m; ++row) {
    float* scratch = static_cast<float*>(workspace(Workspace::PANEL, size_t(padded) * sizeof(float)));
    Code* own = codes + row * stride;
    scales[row] = quantize_row(x + row * x_stride, w.k, w.block, w.norm, scratch, own);
    if (padded < stride) std::memset(own + padded, 0, size_t(stride - padded) * sizeof(Code));
  }
  multiply<T>({w, codes, stride, scales, m, y, y_stride});
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
