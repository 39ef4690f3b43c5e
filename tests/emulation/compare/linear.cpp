// Linear layers in float32 over dense and packed weights, and in bfloat16.
#include "../../../plugins/hundredfold_cpu/native/weight.h"
#include "support.h"

namespace {

struct Case {
  int64_t n, k, m, group, x_stride, y_stride;
  Codes codes;
  Zeros zeros;
  bool half, bias;
  Kind kind;

  explicit Case(Random& random) {
    n = random.among({1, 15, 16, 17, 31, 47, 64, 65, 130});
    k = random.among({1, 2, 31, 33, 64, 96, 255, 321, 643});
    m = random.among({1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 25});
    codes = Codes(random.among({DENSE, CODES4, CODES8}));
    zeros = codes == DENSE ? NO_ZEROS : Zeros(random.below(4));
    group = random.among({2, 8, 32, 34, 64, k + k % 2});
    half = random.chance(50), bias = random.chance(50);
    x_stride = k + random.below(5), y_stride = n + random.below(5);
    kind = random.chance(20) ? Kind::WILD : Kind::PLAIN;
  }
  std::string text() const {
    char line[160];
    std::snprintf(line, sizeof line, "n %d k %d m %d codes %d zeros %d group %d half %d bias %d wild %d", int(n), int(k),
                  int(m), int(codes), int(zeros), int(group), half, bias, kind == Kind::WILD);
    return line;
  }
};

// As in native/dense.h.
struct DenseWeight {
  const uint16_t* values;
  const float* bias;
  int64_t n, k;
};

constexpr int64_t COLUMNS = 32;  // to a multiple of which rows are filled up

int compare_dense(const Library& library, uint64_t seed, int cases) {
  Report report(library, "dense_bf16");
  Random random(seed);
  for (int i = 0; i < cases; ++i) {
    const int64_t n = random.among({1, 15, 16, 17, 31, 47, 64, 65, 130}), k = random.among({1, 2, 31, 32, 33, 64, 96, 255, 321});
    const int64_t m = random.among({1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 65});
    const int64_t x_stride = k + random.below(5), y_stride = n + random.below(5), panels = (n + PANEL - 1) / PANEL;
    const Kind kind = random.chance(25) ? Kind::WILD : Kind::PLAIN;
    const bool tiny = random.chance(25), biased = random.chance(50);
    Memory<uint16_t> weights(n * k), packed(panels * ((k + COLUMNS - 1) / COLUMNS * COLUMNS) * PANEL);
    // products of tiny ones are about as small as a normal float can be
    weights.fill([&](int64_t) { return to_bf16(number(random, Kind::PLAIN) * (tiny ? 0x1p-126f : 1.0f)); });
    library.common("pack_dense_bf16", static_cast<const uint16_t*>(weights.data()), k, n, k, packed.data());
    Memory<float> bias(n);
    bias.fill([&](int64_t) { return random.unit() * (tiny ? 0x1p-126f : 1.0f); });
    char text[160];
    std::snprintf(text, sizeof text, "n %d k %d m %d bias %d tiny %d wild %d", int(n), int(k), int(m), biased, tiny,
                  kind == Kind::WILD);
    const DenseWeight w{packed.data(), biased ? bias.data() : nullptr, n, k};
    Memory<uint16_t> x((m - 1) * x_stride + k);
    x.fill([&](int64_t) { return element<uint16_t>(random, kind); });
    report.compare<uint16_t>(text, (m - 1) * y_stride + n,
                             [&](const std::string& isa, uint16_t* y) {
                               library.call(isa, "dense_bf16", &w, static_cast<const uint16_t*>(x.data()), x_stride, m, y,
                                            y_stride);
                             });
  }
  return report.finish();
}

}  // namespace

int compare_linear(const Library& library, uint64_t seed, int cases) {
  Report report(library, "linear");
  Random random(seed);
  for (int i = 0; i < cases; ++i) {
    const Case c(random);
    const int64_t panels = (c.n + PANEL - 1) / PANEL, groups = (c.k + c.group - 1) / c.group;
    const int64_t rows = c.codes == CODES4 ? (c.k + 1) / 2 : c.k;
    Memory<uint8_t> codes(c.n * c.k);
    codes.fill([&](int64_t) { return uint8_t(random.below(c.codes == CODES4 ? 16 : 256)); });
    Memory<float> dense(c.codes == DENSE ? c.n * c.k : 0);
    dense.fill([&](int64_t) { return number(random, Kind::PLAIN); });
    Memory<uint8_t> packed(panels * rows * PANEL * (c.codes == DENSE ? 4 : 1));
    if (c.codes == DENSE)
      library.common("pack_dense", static_cast<const float*>(dense.data()), c.k, c.n, c.k,
                     reinterpret_cast<float*>(packed.data()));
    else
      library.common(c.codes == CODES4 ? "pack_codes4" : "pack_codes8", static_cast<const uint8_t*>(codes.data()), c.k, c.n,
                     c.k, int64_t(0), packed.data());
    const int64_t factors = panels * groups * PANEL;
    Memory<float> scales(factors), zeros(factors), bias(c.n), x((c.m - 1) * c.x_stride + c.k);
    Memory<uint16_t> half_scales(factors), half_zeros(factors);
    for (int64_t j = 0; j < factors; ++j) {
      scales[j] = random.unit() * 0.02f, zeros[j] = random.unit() * 8;
      half_scales[j] = to_half(scales[j]), half_zeros[j] = to_half(zeros[j]);
    }
    bias.fill([&](int64_t) { return random.unit(); });
    x.fill([&](int64_t) { return number(random, c.kind); });
    Weight w{};
    w.values = packed.data();
    w.scales = c.half ? static_cast<void*>(half_scales.data()) : scales.data();
    w.zeros = c.half ? static_cast<void*>(half_zeros.data()) : zeros.data();
    w.bias = c.bias ? bias.data() : nullptr;
    w.n = c.n, w.k = c.k, w.group = c.group;
    w.codes = c.codes, w.zeros_kind = c.zeros, w.code_bias = c.zeros == NO_ZEROS ? 8 : 0, w.half = c.half;
    report.compare<float>(c.text(), (c.m - 1) * c.y_stride + c.n, [&](const std::string& isa, float* y) {
      library.call(isa, "linear", static_cast<const Weight*>(&w), static_cast<const float*>(x.data()), c.x_stride, c.m, y,
                   c.y_stride);
    });
  }
  return report.finish() + compare_dense(library, seed + 1, cases);
}
