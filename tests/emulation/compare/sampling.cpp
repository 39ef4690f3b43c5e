// Picks of tokens: the likeliest, and draws with top_k, top_p and min_p.
#include "support.h"

namespace {

template <class T>
struct Rows {
  int64_t size, count, stride;
  Memory<T> logits;
  Memory<int64_t> rows, limits;

  Rows(Random& random, Kind kind)
      : size(random.among({1, 7, 16, 17, 100, 511, 513, 1500})),
        count(random.among({1, 2, 5})),
        stride(size + random.below(3)),
        logits((count - 1) * stride + size),
        rows(count),
        limits(count) {
    const float spread = float(random.among({1, 4, 12}));
    logits.fill([&](int64_t) {
      const float logit = number(random, kind) * spread;
      if constexpr (sizeof(T) == 2) return to_bf16(logit);
      else return logit;
    });
    rows.fill([&](int64_t i) { return count - 1 - i; });
    limits.fill([&](int64_t) { return random.chance(70) ? size : 1 + random.below(size); });
  }
  std::string text() const { return "size " + std::to_string(size) + " rows " + std::to_string(count); }
};

template <class T>
int compare_likeliest(const Library& library, uint64_t seed, int cases, const char* name) {
  Report report(library, name);
  Random random(seed);
  for (int i = 0; i < cases; ++i) {
    const Rows<T> r(random, random.chance(40) ? Kind::WILD : Kind::PLAIN);
    report.compare<int64_t>(r.text(), 2 * r.count, [&](const std::string& isa, int64_t* out) {
      Memory<float> values(r.count);
      library.call(isa, name, static_cast<const T*>(r.logits.data()), r.stride,
                   static_cast<const int64_t*>(r.rows.data()), static_cast<const int64_t*>(r.limits.data()), r.count, out,
                   values.data());
      for (int64_t row = 0; row < r.count; ++row) {
        const float value = values[row];
        int32_t bits = 0x7fc00000;
        if (value == value) std::memcpy(&bits, &value, 4);
        out[r.count + row] = bits;
      }
    });
  }
  return report.finish();
}

int compare_draw(const Library& library, uint64_t seed, int cases) {
  Report report(library, "draw");
  Random random(seed);
  constexpr int64_t MOST_THREADS = 64;
  for (int i = 0; i < cases; ++i) {
    const Rows<float> r(random, Kind::PLAIN);
    Memory<float> tops(r.count), temperatures(r.count);
    Memory<int64_t> top_ks(r.count);
    Memory<double> top_ps(r.count), min_ps(r.count);
    Memory<uint32_t> keys(2 * r.count), spread(r.size);
    keys.fill([&](int64_t) { return uint32_t(random.bits()); });
    spread.fill([&](int64_t) { return uint32_t(random.bits()); });
    for (int64_t row = 0; row < r.count; ++row) {
      float top = r.logits[r.rows[row] * r.stride];
      for (int64_t j = 1; j < r.limits[row]; ++j) {
        const float x = r.logits[r.rows[row] * r.stride + j];
        top = x > top ? x : top;
      }
      tops[row] = top, temperatures[row] = 0.2f + float(random.below(20)) * 0.1f;
      top_ks[row] = random.chance(50) ? r.size : 1 + random.below(r.size);
      top_ps[row] = random.chance(50) ? 1.0 : 0.05 + 0.9 * (random.unit() * 0.5 + 0.5);
      min_ps[row] = random.chance(70) ? 0.0 : 0.2;
    }
    Memory<int64_t> room(r.size * MOST_THREADS);
    report.compare<int64_t>(r.text(), r.count, [&](const std::string& isa, int64_t* drawn) {
      library.call(isa, "draw", static_cast<const float*>(r.logits.data()), r.stride,
                   static_cast<const int64_t*>(r.rows.data()), static_cast<const int64_t*>(r.limits.data()), r.count,
                   static_cast<const float*>(tops.data()), static_cast<const float*>(temperatures.data()),
                   static_cast<const int64_t*>(top_ks.data()), static_cast<const double*>(top_ps.data()),
                   static_cast<const double*>(min_ps.data()), static_cast<const uint32_t*>(keys.data()),
                   static_cast<const uint32_t*>(spread.data()), static_cast<void*>(room.data()), r.size, drawn);
    });
  }
  return report.finish();
}

}  // namespace

int compare_sampling(const Library& library, uint64_t seed, int cases) {
  return compare_likeliest<float>(library, seed, cases, "likeliest_f32") +
         compare_likeliest<uint16_t>(library, seed + 2, cases, "likeliest_bf16") + compare_draw(library, seed + 1, cases);
}
