// Norms, sums, rotation, gated activations and rows of tables.
#include "support.h"

namespace {

// As in native/lookup.cpp.
struct Table {
  const void *values, *scales, *zeros;
  int64_t rows, columns, stride, group, kind, half, offset;
  double factor;
};

template <class T>
void fill(Memory<T>& memory, Random& random, Kind kind) {
  memory.fill([&](int64_t) { return element<T>(random, kind); });
}

template <class T>
struct Suite {
  const Library& library;
  uint64_t seed;
  int cases;
  std::string suffix;

  // Calls body(random, n, rows, kind, text) for each case.
  template <class F>
  int run(const std::string& kernel, F body) const {
    const std::string name = kernel + "_" + suffix;
    Report report(library, name);
    Random random(seed);
    for (int i = 0; i < cases; ++i) {
      const int64_t n = random.among({1, 2, 8, 15, 16, 17, 33, 64, 79, 80, 576}), rows = random.among({1, 2, 3, 7, 20});
      const Kind kind = random.chance(40) ? Kind::WILD : Kind::PLAIN;
      const std::string text = "n " + std::to_string(n) + " rows " + std::to_string(rows) + (kind == Kind::WILD ? " wild" : "");
      body(report, name, random, n, rows, kind, text);
    }
    return report.finish();
  }

  int rms_norm() const {
    return run("rms_norm", [&](Report& report, const std::string& name, Random& random, int64_t n, int64_t rows, Kind kind,
                               const std::string& text) {
      const int64_t heads = random.among({1, 3}), stride = heads * n + random.below(3);
      Memory<T> x((rows - 1) * stride + heads * n);
      Memory<float> weight(n);
      fill(x, random, kind), fill(weight, random, Kind::PLAIN);
      report.compare<T>(text, rows * heads * n, [&](const std::string& isa, T* out) {
        library.call(isa, name, static_cast<const T*>(x.data()), rows, heads, stride, n, n,
                     static_cast<const float*>(weight.data()), 1e-5f, out, heads * n, n);
      });
    });
  }

  int add(bool norm) const {
    return run(norm ? "add_rms_norm" : "add", [&](Report& report, const std::string& name, Random& random, int64_t n,
                                                  int64_t rows, Kind kind, const std::string& text) {
      const int64_t stride = n + random.below(3);
      Memory<T> before((rows - 1) * stride + n), x((rows - 1) * stride + n), residual((rows - 1) * stride + n);
      Memory<float> weight(n);
      fill(before, random, kind), fill(x, random, kind), fill(weight, random, Kind::PLAIN);
      const int64_t written = norm ? rows * n : 0;
      report.compare<T>(text, written + residual.size(), [&](const std::string& isa, T* out) {
        residual.fill([&](int64_t i) { return before[i]; });
        if (norm)
          library.call(isa, name, residual.data(), stride, static_cast<const T*>(x.data()), stride, rows, n,
                       static_cast<const float*>(weight.data()), 1e-6f, out, n);
        else
          library.call(isa, name, residual.data(), stride, static_cast<const T*>(x.data()), stride, rows, n);
        for (int64_t i = 0; i < residual.size(); ++i) out[written + i] = residual[i];
      });
    });
  }

  int rotate() const {
    return run("rotate", [&](Report& report, const std::string& name, Random& random, int64_t n, int64_t rows, Kind kind,
                             const std::string& text) {
      const int64_t dim = n + n % 2, heads = random.among({1, 3}), head_stride = dim + random.below(4);
      const int64_t stride = heads * head_stride + random.below(3), pairs = random.below(2);
      Memory<T> before((rows - 1) * stride + (heads - 1) * head_stride + dim);
      Memory<float> angles(rows * dim);
      fill(before, random, kind), fill(angles, random, Kind::PLAIN);
      report.compare<T>(text + (pairs ? " pairs" : ""), before.size(), [&](const std::string& isa, T* out) {
        Memory<T> x(before.size());
        x.fill([&](int64_t i) { return before[i]; });
        library.call(isa, name, x.data(), rows, heads, stride, head_stride, dim, pairs,
                     static_cast<const float*>(angles.data()));
        for (int64_t i = 0; i < x.size(); ++i) out[i] = x[i];
      });
    });
  }

  int gated() const {
    return run("gated", [&](Report& report, const std::string& name, Random& random, int64_t n, int64_t rows, Kind kind,
                            const std::string& text) {
      const int64_t stride = 2 * n + random.below(3), activation = random.below(3);
      Memory<T> x((rows - 1) * stride + 2 * n);
      const bool large = random.chance(50);  // where exponentials come to their ends
      x.fill([&](int64_t) {
        if (kind == Kind::WILD || !large) return element<T>(random, kind);
        const float wide = random.unit() * 120;
        if constexpr (sizeof(T) == 2) return to_bf16(wide);
        else return wide;
      });
      report.compare<T>(text + " activation " + std::to_string(activation), rows * n, [&](const std::string& isa, T* out) {
        library.call(isa, name, static_cast<const T*>(x.data()), rows, stride, n, activation, out, n);
      });
    });
  }

  int lookup() const {
    return run("lookup", [&](Report& report, const std::string& name, Random& random, int64_t n, int64_t rows, Kind kind,
                             const std::string& text) {
      const int64_t entries = 5, stride = n + random.below(3), group = random.among({4, 16, 32, n}), which = random.below(3);
      const int64_t factors = entries * ((n + group - 1) / group), half = random.below(2);
      Memory<float> values(entries * stride), scales(factors), zeros(factors);
      Memory<uint8_t> codes(entries * stride);
      Memory<uint16_t> half_scales(factors), half_zeros(factors);
      fill(values, random, kind);
      codes.fill([&](int64_t) { return uint8_t(random.below(256)); });
      for (int64_t i = 0; i < factors; ++i) {
        scales[i] = random.unit() * 0.02f, zeros[i] = random.unit() * 8;
        half_scales[i] = to_half(scales[i]), half_zeros[i] = to_half(zeros[i]);
      }
      Memory<int64_t> ids(rows);
      ids.fill([&](int64_t) { return random.chance(5) ? entries : random.below(entries); });
      const void *scales_at = half ? static_cast<void*>(half_scales.data()) : scales.data();
      const void *zeros_at = half ? static_cast<void*>(half_zeros.data()) : zeros.data();
      const bool has_zeros = random.chance(70);
      const Table table{which ? static_cast<void*>(codes.data()) : values.data(), scales_at, has_zeros ? zeros_at : nullptr,
                        entries, n, stride, group, which, half, random.below(2), random.chance(50) ? 1.0 : 24.0};
      report.compare<T>(text + " kind " + std::to_string(which), rows * n, [&](const std::string& isa, T* out) {
        library.call(isa, name, &table, static_cast<const int64_t*>(ids.data()), rows, out, n);
      });
    });
  }

  int all() const { return lookup() + rms_norm() + add(false) + add(true) + rotate() + gated(); }
};

}  // namespace

int compare_elementwise(const Library& library, uint64_t seed, int cases) {
  return Suite<float>{library, seed, cases, "f32"}.all() + Suite<uint16_t>{library, seed + 1, cases, "bf16"}.all();
}
