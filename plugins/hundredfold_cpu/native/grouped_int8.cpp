// Linear layers of grouped integers with inputs in int8: y[M, N] = quantized(x)[M, K] @ w[N, K].T + bias[N].
//
// hundredfold.plugin.integer defines each bit. How a product is cut into tiles and threads changes none of them.
#include "grouped_tile.h"
#if HF_ISA_NUMBER >= HF_AVX512AMX
#include "grouped_unit.h"
#endif
#include "team_panels.h"
#include "words.h"
#include "workspace.h"

namespace HF_ISA {

// Multiplications that are not worth a second thread, and those that a thread should get at a time.
constexpr int64_t SMALL = 1 << 18, SHARE = 1 << 16;

template <int R>
struct Size {
  static constexpr int value = R;
};

// Calls f(Size<R>()) with the size of the next tile when so many rows are left. Few sizes, since each is much code.
template <int MOST, class F>
static inline void with_tile(int64_t rows, F f) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return with_tile<MOST == 12 ? 6 : MOST == 6 ? 4 : MOST / 2>(rows, f);
  }
  f(Size<MOST>());
}

// Up to so many rows are quantized by the thread that calls, which is quicker than waiting for the others.
constexpr int64_t FEW_INPUTS = 8;

// ROW_TILE: more rows than few come in so many, those past the last with factors of zero. UNPACKED_ROWS: from so many rows
// up a panel is unpacked once.
#if HF_ISA_NUMBER >= HF_AVX512AMX
constexpr int64_t ROW_TILE = UNIT_ROWS, UNPACKED_ROWS = FEW_INPUTS + 1;
#else
constexpr int64_t ROW_TILE = 1, UNPACKED_ROWS = ROWS + 1;
#endif

template <class T>
struct GroupedProduct {
  const GroupedWeight& w;
  Inputs in;
  int64_t m;
  T* y;
  int64_t y_stride;

  void put_row(const float* sums, int64_t row, int64_t panel) const {
    const int64_t first = panel * PANEL, columns = w.n - first;
    Vec out = load(sums);
    if (w.bias) out = add(out, get_part(w.bias + first, columns));
    put_part(y + row * y_stride + first, out, columns);
  }

  template <int BITS, class Codes>
  void rows(const Codes& codes, const Factors& factors, int64_t panel) const {
    alignas(64) float sums[ROWS * PANEL];
    for (int64_t row = 0; row < m;) {
      const auto tile = [&](auto size) {
        constexpr int R = decltype(size)::value;
        for (int r = 0; r < R; ++r) expect_write(y + (row + r) * y_stride + panel * PANEL);
        grouped_tile<BITS, R>(w, factors, codes, in, row, sums);
        for (int r = 0; r < R; ++r) put_row(sums + r * PANEL, row + r, panel);
        row += R;
      };
      with_tile<ROWS>(m - row, tile);
    }
  }

#if HF_ISA_NUMBER >= HF_AVX512AMX
  void unit_rows(const uint8_t* codes, const Factors& factors, int64_t panel) const {
    const MatrixUnit unit(unit_shapes(w));
    alignas(64) float sums[UNIT_ROWS * PANEL];
    for (int64_t row = 0; row < m; row += UNIT_ROWS) {
      const int64_t count = m - row < UNIT_ROWS ? m - row : UNIT_ROWS;
      for (int64_t r = 0; r < count; ++r) expect_write(y + (row + r) * y_stride + panel * PANEL);
      unit_tile(w, factors, codes, in, row, sums);
      for (int64_t r = 0; r < count; ++r) put_row(sums + r * PANEL, row + r, panel);
    }
  }
#endif

  // All rows times a panel; codes and factors that several tiles share are unpacked once.
  template <int BITS>
  void panel(int64_t panel) const {
    const int64_t quads = w.quads(), groups = w.groups();
    const PackedCodes<BITS> packed{w.codes + panel * quads * PackedCodes<BITS>::BYTES};
    const Factors factors = Factors::of(w, panel);
    if (m < UNPACKED_ROWS) return rows<BITS>(packed, factors, panel);
    const int64_t code_bytes = quads * UnpackedCodes<BITS>::BYTES, factor_bytes = groups * PANEL * 4;
    uint8_t* codes = static_cast<uint8_t*>(workspace(Workspace::PANEL, size_t(code_bytes + 2 * factor_bytes)));
    float* scales = reinterpret_cast<float*>(codes + code_bytes);
    float* offsets = factors.offsets ? scales + groups * PANEL : nullptr;
    unpack<BITS>(packed.codes, quads, codes);
    for (int64_t g = 0; g < groups; ++g) {
      store(scales + g * PANEL, factors.read(factors.scales, g));
      if (offsets) store(offsets + g * PANEL, factors.read(factors.offsets, g));
    }
    const Factors floats{scales, offsets, false};
#if HF_ISA_NUMBER >= HF_AVX512AMX
    if (unit_takes(w)) return unit_rows(codes, floats, panel);
#endif
    rows<BITS>(UnpackedCodes<BITS>{codes}, floats, panel);
  }
};

// Multiplications that a thread of a team gets at a time.
constexpr int64_t TEAM_SHARE = 1 << 16, TEAM_SHARE_OF_MANY = 1 << 18;

template <int BITS, class T>
static void grouped(const GroupedWeight& w, const T* x, int64_t x_stride, int64_t m, T* y, int64_t y_stride) {
  using Code = InputCode<BITS>;
  const bool few = m <= FEW_INPUTS;
  const int64_t padded = few ? m : up(m, ROW_TILE), panels = w.panels();
  const size_t bytes = Inputs::bytes(w, sizeof(Code), padded);
  void* memory = in_team() && !few ? team_workspace(bytes) : workspace(Workspace::INPUTS, bytes);
  const Inputs in = Inputs::in(memory, w, sizeof(Code), padded);
  const GroupedProduct<T> job{w, in, m, y, y_stride};
  const auto quantize_bands = [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row += BAND)
      quantize_rows<Code>(w, x, x_stride, in, row, m - row < BAND ? m - row : BAND);
    for (int64_t row = m; last == m && row < padded; ++row) in.leave_out(w, row);
  };
  if (few) {
    for (int64_t row = 0; row < m; ++row) quantize_row<Code>(w, x + row * x_stride, in, row);
  }
  if (in_team()) {
    if (!few) {
      by_team((m + BAND - 1) / BAND, 1, [&](int64_t first, int64_t last) {
        quantize_bands(first * BAND, last * BAND < m ? last * BAND : m);
      });
    }
    return panels_by_team(job, 1, few ? TEAM_SHARE : TEAM_SHARE_OF_MANY, [](const GroupedProduct<T>& own, int64_t first, int64_t last) {
      for (; first < last; ++first) own.template panel<BITS>(first);
    });
  }
  const int64_t at_once = 1 + SHARE / (m * w.k * PANEL);
#pragma omp parallel if (m * w.n * w.k > SMALL)
  {
    if (!few) {
#pragma omp for schedule(static)
      for (int64_t row = 0; row < m; row += BAND) quantize_bands(row, m - row < BAND ? m : row + BAND);
    }
#pragma omp for schedule(dynamic, at_once) nowait
    for (int64_t panel = 0; panel < panels; ++panel) job.template panel<BITS>(panel);
  }
}

template <class T>
static void grouped(const GroupedWeight& w, const T* x, int64_t x_stride, int64_t m, T* y, int64_t y_stride) {
  if (m == 0) return;
  if (w.bits == 4) return grouped<4>(w, x, x_stride, m, y, y_stride);
  grouped<8>(w, x, x_stride, m, y, y_stride);
}

}  // namespace HF_ISA

HF_EXPORT(grouped_int8_float32)
(const GroupedWeight* w, const float* x, int64_t x_stride, int64_t m, float* y, int64_t y_stride) {
  HF_ISA::grouped(*w, x, x_stride, m, y, y_stride);
}

HF_EXPORT(grouped_int8_bfloat16)
(const GroupedWeight* w, const uint16_t* x, int64_t x_stride, int64_t m, uint16_t* y, int64_t y_stride) {
  HF_ISA::grouped(*w, x, x_stride, m, y, y_stride);
}

HF_WORDS(grouped_int8_float32)
HF_WORDS(grouped_int8_bfloat16)
