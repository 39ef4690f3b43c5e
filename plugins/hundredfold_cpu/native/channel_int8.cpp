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

// A row, rotated, to out[up(k, 16)]; returns the largest magnitude's bits.
template <class T>
static uint32_t rotated_row(const T* x, int64_t k, int64_t block, float norm, float* out) {
  if (block == ROTATED) {
    Vec top = zero();
    for (int64_t i = 0; i < k; i += ROTATED) {
      Vec v[4];
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) v[part] = get(x + i + part * LANES);
      rotate64(v, broadcast(norm));
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) store(out + i + part * LANES, v[part]), top = larger_magnitude(top, v[part]);
    }
    const float largest = largest_magnitude(top);
    uint32_t bits;
    std::memcpy(&bits, &largest, 4);
    return bits;
  }
  const int64_t padded = up(k, LANES);
  read_row(x, k, out);
  for (int64_t i = k; i < padded; ++i) out[i] = 0;
  rotate(out, k, block, norm);
  return largest_bits(out, padded);
}

// A row as codes[up(k, 16)]; returns its scale. `scratch` holds up(k, 16) floats.
template <class T>
static float quantize_row(const T* x, int64_t k, int64_t block, float norm, float* scratch, Code* codes) {
  const int64_t padded = up(k, LANES);
  const uint32_t bits = rotated_row(x, k, block, norm, scratch);
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

// Calls wide(panel) for each P panels, narrow(panel) for each that is left.
template <int P, class Wide, class Narrow>
static inline void for_panels(int64_t first, int64_t last, Wide wide, Narrow narrow) {
  for (; first + P <= last; first += P) wide(first);
  for (; first < last; ++first) narrow(first);
}

template <class T>
static inline void few_panels(const ChannelProduct<T>& job, int64_t first, int64_t last) {
  for (; first < last; ++first) channel_few(job, first);
}

template <class T>
static inline void many_panels(const ChannelProduct<T>& job, int64_t first, int64_t last) {
#if HF_ISA_NUMBER >= HF_AVX512AMX
  if (job.m >= UNIT_LEAST) {
    return for_panels<UNIT_TILES>(first, last, [&](int64_t panel) { unit_rows<UNIT_TILES>(job, panel); },
                                  [&](int64_t panel) { unit_rows<1>(job, panel); });
  }
#endif
  for_panels<PANELS>(first, last, [&](int64_t panel) { channel_rows<PANELS>(job, panel); },
                     [&](int64_t panel) { channel_rows<1>(job, panel); });
}

// How many panels that multiplies together.
static int64_t panels_together(int64_t m) {
#if HF_ISA_NUMBER >= HF_AVX512AMX
  if (m >= UNIT_LEAST) return UNIT_TILES;
#endif
  return m <= FEW_ROWS ? 1 : PANELS;
}

// Multiplications that a thread of a team gets at a time: few rows wait for memory, a matrix unit is quick.
static int64_t share_of(int64_t m) {
#if HF_ISA_NUMBER >= HF_AVX512AMX
  if (m >= UNIT_LEAST) return 1 << 20;
#endif
  return m <= FEW_ROWS ? 1 << 16 : 1 << 18;
}

template <class T>
static void multiply(const ChannelProduct<T>& job) {
  const int64_t panels = job.w.panels(), together = panels_together(job.m);
  const bool worth_it = job.m * job.w.n * job.w.k > SMALL;
  if (in_team()) {
    return panels_by_team(job, together, share_of(job.m), [](const ChannelProduct<T>& own, int64_t first, int64_t last) {
      own.m <= FEW_ROWS ? few_panels(own, first, last) : many_panels(own, first, last);
    });
  }
  if (job.m <= FEW_ROWS) {
    const int64_t at_once = 1 + SMALL / (job.m * job.w.k * PANEL);
#pragma omp parallel for schedule(dynamic, at_once) if (worth_it)
    for (int64_t panel = 0; panel < panels; ++panel) few_panels(job, panel, panel + 1);
    return;
  }
  // Many at first, so that a thread knows what comes next, and few at last, so that nobody waits long.
#pragma omp parallel for schedule(guided) if (worth_it)
  for (int64_t panel = 0; panel < panels; panel += together)
    many_panels(job, panel, panel + together < panels ? panel + together : panels);
}
// Rows of codes and their scales, in memory of somebody's.
struct RowCodes {
  int64_t stride;
  Code* codes;
  float* scales;

  RowCodes(int64_t k, void* memory, int64_t rows)
      : stride(codes_stride(k)), codes(static_cast<Code*>(memory)), scales(reinterpret_cast<float*>(codes + rows * stride)) {}

  static size_t bytes(int64_t k, int64_t rows) {
    return size_t(rows) * (size_t(codes_stride(k)) * sizeof(Code) + sizeof(float));
  }
  template <class T>
  void take(const ChannelWeight& w, const T* x, int64_t row) const {
    const int64_t padded = up(w.k, LANES);
    float* scratch = static_cast<float*>(workspace(Workspace::PANEL, size_t(padded) * sizeof(float)));
    Code* own = codes + row * stride;
    scales[row] = quantize_row(x, w.k, w.block, w.norm, scratch, own);
    if (padded < stride) std::memset(own + padded, 0, size_t(stride - padded) * sizeof(Code));
  }
};

// By a team, for all of it to read.
template <class T>
static RowCodes quantize_by_team(const ChannelWeight& w, const T* x, int64_t x_stride, int64_t m) {
  constexpr int64_t SHARE = 1 << 11;  // numbers that a thread gets at a time
  const int64_t rows = up(m, ROWS_AT_ONCE);
  const RowCodes all(w.k, team_workspace(RowCodes::bytes(w.k, rows)), rows);
  const auto compute = [&](int64_t first, int64_t last, void* room) {
    const RowCodes own(w.k, room, last - first);
    for (int64_t row = first; row < last; ++row) own.take(w, x + row * x_stride, row - first);
  };
  const auto put = [&](int64_t first, int64_t last, void* room) {
    const RowCodes own(w.k, room, last - first);
    std::memcpy(all.codes + first * all.stride, own.codes, size_t((last - first) * all.stride) * sizeof(Code));
    std::memcpy(all.scales + first, own.scales, size_t(last - first) * sizeof(float));
  };
  by_team(m, 1 + SHARE / w.k, RowCodes::bytes(w.k, 1), compute, put);
  return all;
}

template <class T>
static void channel_int8(const ChannelWeight& w, const T* x, int64_t x_stride, int64_t m, T* y, int64_t y_stride) {
  if (m == 0) return;
  const auto multiply_all = [&](const RowCodes& in) { multiply<T>({w, in.codes, in.stride, in.scales, m, y, y_stride}); };
  // Few rows each thread of a team takes for itself, which is quicker than waiting for the others.
  if (in_team() && m > FEW_ROWS) return multiply_all(quantize_by_team(w, x, x_stride, m));
  const int64_t rows = up(m, ROWS_AT_ONCE);
  const RowCodes in(w.k, workspace(Workspace::INPUTS, RowCodes::bytes(w.k, rows)), rows);
#pragma omp parallel for if (m > FEW_ROWS && m * w.k > SMALL / 8)
  for (int64_t row = 0; row < m; ++row) in.take(w, x + row * x_stride, row);
  multiply_all(in);
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
