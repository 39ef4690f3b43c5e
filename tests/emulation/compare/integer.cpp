// Linear layers of whole numbers: grouped integers and int8 by channel, inputs in int8.
#include "../../../plugins/hundredfold_cpu/native/grouped.h"
#include "support.h"

namespace {

// As in native/channel_int8.cpp.
struct ChannelWeight {
  const int8_t* codes;
  const float* scales;
  const int32_t* correction;
  const float* bias;
  int64_t n, k, block;
  float norm;
};

constexpr int64_t MOST_STEP = 4;  // columns side by side, in any arrangement

std::string describe(int64_t n, int64_t k, int64_t m, int64_t block, int64_t bits, bool wild) {
  char line[160];
  std::snprintf(line, sizeof line, "n %d k %d m %d group/block %d bits %d wild %d", int(n), int(k), int(m), int(block),
                int(bits), wild);
  return line;
}

template <class T>
int compare_grouped(const Library& library, uint64_t seed, int cases, const char* name) {
  Report report(library, name);
  Random random(seed);
  for (int i = 0; i < cases; ++i) {
    const int64_t n = random.among({1, 15, 16, 17, 47, 64, 65, 130}), k = random.among({1, 3, 32, 33, 64, 95, 256, 327});
    const int64_t m = random.among({1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 25, 31});
    const int64_t x_stride = k + random.below(5), y_stride = n + random.below(5);
    const Kind kind = random.chance(25) ? Kind::WILD : Kind::PLAIN;
    GroupedWeight w{};
    w.n = n, w.k = k, w.group = random.among({4, 16, 32, 32, 32, 34, 64, 128, k});
    w.bits = random.chance(50) ? 4 : 8, w.half = random.chance(50);
    w.code_bias = random.chance(50) ? 0 : w.bits == 4 ? 8 : 128;
    const int64_t codes_below = w.bits == 4 ? 16 : 256, extreme = random.chance(30);
    Memory<uint8_t> codes(n * k), packed(w.panels() * w.quads() * QUAD_BYTES * w.bits / 8);
    codes.fill([&](int64_t) { return uint8_t(extreme ? codes_below - 1 : random.below(codes_below)); });
    const int64_t factors = w.panels() * w.groups() * PANEL;
    Memory<float> scales(factors), offsets(factors), bias(n);
    Memory<uint16_t> half_scales(factors), half_offsets(factors);
    for (int64_t j = 0; j < factors; ++j) {
      scales[j] = random.unit() * 0.02f, offsets[j] = random.unit() * 0.2f;
      half_scales[j] = to_half(scales[j]), half_offsets[j] = to_half(offsets[j]);
    }
    bias.fill([&](int64_t) { return random.unit(); });
    w.codes = packed.data();
    w.scales = w.half ? static_cast<void*>(half_scales.data()) : scales.data();
    if (random.chance(50)) w.offsets = w.half ? static_cast<void*>(half_offsets.data()) : offsets.data();
    if (random.chance(50)) w.bias = bias.data();
    library.common("pack_grouped", static_cast<const GroupedWeight*>(&w), static_cast<const uint8_t*>(codes.data()), k,
                   int64_t(0), packed.data());
    Memory<T> x((m - 1) * x_stride + k);
    // all of one size, too, so that every code is 127 or -127: the largest sums there are
    x.fill([&](int64_t) { return extreme ? element<T>(random, Kind::PLAIN) * T(0) + (sizeof(T) == 2 ? T(0x3f80) : T(1)) : element<T>(random, kind); });
    report.compare<T>(describe(n, k, m, w.group, w.bits, kind == Kind::WILD), (m - 1) * y_stride + n,
                      [&](const std::string& isa, T* y) {
                        library.call(isa, name, static_cast<const GroupedWeight*>(&w), static_cast<const T*>(x.data()),
                                     x_stride, m, y, y_stride);
                      });
  }
  return report.finish();
}

template <class T>
int compare_channels(const Library& library, uint64_t seed, int cases, const char* name) {
  Report report(library, name);
  Random random(seed);
  for (int i = 0; i < cases; ++i) {
    const int64_t n = random.among({1, 15, 16, 17, 47, 64, 65, 130}), block = random.among({1, 1, 2, 4, 8, 16, 32, 64, 64, 128});
    const int64_t k = block == 1 ? random.among({1, 2, 3, 5, 31, 64, 127, 257}) : block * random.among({1, 2, 3});
    const int64_t m = random.among({1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 24, 25, 31});
    const int64_t x_stride = k + random.below(5), y_stride = n + random.below(5), panels = (n + PANEL - 1) / PANEL;
    const Kind kind = random.chance(25) ? Kind::WILD : Kind::PLAIN;
    const bool extreme = random.chance(20);
    Memory<int8_t> codes(n * k), packed(panels * PANEL * ((k + MOST_STEP - 1) / MOST_STEP * MOST_STEP));
    codes.fill([&](int64_t) { return int8_t(extreme ? -128 : random.below(256) - 128); });
    Memory<float> scales(panels * PANEL), bias(n);
    Memory<int32_t> correction(panels * PANEL);
    scales.fill([&](int64_t j) { return j < n ? random.unit() * 0.02f : 0.0f; });
    bias.fill([&](int64_t) { return random.unit(); });
    const bool biased = random.chance(50);
    Memory<T> x((m - 1) * x_stride + k);
    x.fill([&](int64_t) { return element<T>(random, kind); });
    report.compare<T>(
        describe(n, k, m, block, 8, kind == Kind::WILD), (m - 1) * y_stride + n, [&](const std::string& isa, T* y) {
          library.call(isa, "pack_channel_int8", static_cast<const int8_t*>(codes.data()), k, n, k, packed.data(),
                       correction.data());
          const ChannelWeight w{packed.data(), scales.data(), correction.data(), biased ? bias.data() : nullptr, n, k, block,
                                1.0f / __builtin_sqrtf(float(block))};
          library.call(isa, name, &w, static_cast<const T*>(x.data()), x_stride, m, y, y_stride);
        });
  }
  return report.finish();
}

}  // namespace

int compare_integer(const Library& library, uint64_t seed, int cases) {
  return compare_grouped<float>(library, seed, cases, "grouped_int8_float32") +
         compare_grouped<uint16_t>(library, seed + 1, cases, "grouped_int8_bfloat16") +
         compare_channels<float>(library, seed + 2, cases, "channel_int8_f32") +
         compare_channels<uint16_t>(library, seed + 3, cases, "channel_int8_bf16");
}
