// Linear layers of grouped integers with inputs in int8: y[M, N] = quantized(x)[M, K] @ w[N, K].T + bias[N].
//
// hundredfold.plugin.integer defines each bit. How a product is cut into tiles and threads changes none of them.
#include "grouped_tile.h"
#include "team.h"
#include "words.h"
#include "workspace.h"

namespace HF_ISA {

// Multiplications that are not worth a second thread, and those that a thread should get at a time; of a team more, since
// panels one after the other are what memory is quickest at.
constexpr int64_t SMALL = 1 << 18, SHARE = 1 << 16, TEAM_SHARE = 1 << 17;

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

  // All rows times a panel; codes and factors that several tiles share are unpacked once.
  template <int BITS>
  void panel(int64_t panel) const {
    const int64_t quads = w.quads(), groups = w.groups();
    const PackedCodes<BITS> packed{w.codes + panel * quads * PackedCodes<BITS>::BYTES};
    const Factors factors = Factors::of(w, panel);
    if (m <= ROWS) return rows<BITS>(packed, factors, panel);
    const int64_t code_bytes = quads * UnpackedCodes<BITS>::BYTES, factor_bytes = groups * PANEL * 4;
    uint8_t* codes = static_cast<uint8_t*>(workspace(Workspace::PANEL, size_t(code_bytes + 2 * factor_bytes)));
    float* scales = reinterpret_cast<float*>(codes + code_bytes);
    float* offsets = factors.offsets ? scales + groups * PANEL : nullptr;
    unpack<BITS>(packed.codes, quads, codes);
    for (int64_t g = 0; g < groups; ++g) {
      store(scales + g * PANEL, factors.read(factors.scales, g));
      if (offsets) store(offsets + g * PANEL, factors.read(factors.offsets, g));
    }
    rows<BITS>(UnpackedCodes<BITS>{codes}, Factors{scales, offsets, false}, panel);
  }
};

// A few panels of a product, as a team computes them.
template <int BITS, class T>
struct GroupedPart {
  GroupedProduct<T> whole;
  int64_t at_once;

  int64_t columns() const { return at_once * PANEL; }
  static void compute(const void* context, int64_t part, int64_t, void* room) {
    const GroupedPart& own = *static_cast<const GroupedPart*>(context);
    const GroupedProduct<T>& whole = own.whole;
    const int64_t first = part * own.at_once, panels = whole.w.panels();
    const GroupedProduct<T> job{whole.w, whole.in, whole.m, static_cast<T*>(room) - first * PANEL, own.columns()};
    for (int64_t panel = first; panel < first + own.at_once && panel < panels; ++panel) job.template panel<BITS>(panel);
  }
  static void put(const void* context, int64_t part, const void* room) {
    const GroupedPart& own = *static_cast<const GroupedPart*>(context);
    const GroupedProduct<T>& whole = own.whole;
    const int64_t first = part * own.columns(), left = whole.w.n - first, count = left < own.columns() ? left : own.columns();
    for (int64_t row = 0; row < whole.m; ++row)
      __builtin_memcpy(whole.y + row * whole.y_stride + first, static_cast<const T*>(room) + row * own.columns(),
                       size_t(count) * sizeof(T));
  }
  static GroupedPart of(const GroupedProduct<T>& whole) {
    const int64_t least = (whole.w.panels() + Job::MOST_PARTS - 1) / Job::MOST_PARTS;
    const int64_t wanted = 1 + TEAM_SHARE / (whole.m * whole.w.k * PANEL);
    return {whole, wanted < least ? least : wanted};
  }
  // Whether its result has room.
  bool fits() const { return columns() * whole.m * int64_t(sizeof(T)) <= int64_t(Job::ROOM); }
  void run() const {
    Job job = Job::of((whole.w.panels() + at_once - 1) / at_once, *this);
    job.compute = compute, job.put = put;
    run_by_team(job);
  }
};

template <int BITS, class T>
static void grouped(const GroupedWeight& w, const T* x, int64_t x_stride, int64_t m, T* y, int64_t y_stride) {
  using Code = InputCode<BITS>;
  const Inputs in = Inputs::in(workspace(Workspace::INPUTS, Inputs::bytes(w, sizeof(Code), m)), w, sizeof(Code), m);
  const GroupedProduct<T> job{w, in, m, y, y_stride};
  const bool few = m <= FEW_INPUTS;
  if (few) {
    for (int64_t row = 0; row < m; ++row) quantize_row<Code>(w, x + row * x_stride, in, row);
  }
  if (few && leads_team() && m * w.n * w.k > SMALL) {
    if (const auto part = GroupedPart<BITS, T>::of(job); part.fits()) return part.run();
  }
  const int64_t panels = w.panels(), at_once = 1 + SHARE / (m * w.k * PANEL);
#pragma omp parallel if (m * w.n * w.k > SMALL)
  {
    if (!few) {
#pragma omp for schedule(static)
      for (int64_t row = 0; row < m; ++row) quantize_row<Code>(w, x + row * x_stride, in, row);
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
