// Packed codes to floats: the very numbers that hundredfold.plugin.dequantize gives.
#pragma once

#include "vec.h"
#include "weight.h"

namespace HF_ISA {

static inline Vec load_scale(const Weight& w, const void* base, int64_t at) {
  return w.half ? load_half(static_cast<const uint16_t*>(base) + at) : load(static_cast<const float*>(base) + at);
}

// The scale and zero of one group of one panel.
template <Zeros KIND>
struct Group {
  Vec scale, zero;

  void read(const Weight& w, int64_t panel, int64_t group, int64_t groups) {
    const int64_t at = (panel * groups + group) * PANEL;
    scale = load_scale(w, w.scales, at);
    if constexpr (KIND != NO_ZEROS) zero = load_scale(w, w.zeros, at);
  }

  Vec value(Ints code, [[maybe_unused]] Ints bias) const {
    if constexpr (KIND == NO_ZEROS) return mul(to_float(minus(code, bias)), scale);
    if constexpr (KIND == POINTS) return mul(sub(to_float(code), zero), scale);
    if constexpr (KIND == EXACT) return fma(to_float(code), scale, zero);
    return add(mul(to_float(code), scale), zero);
  }
};

// Where a panel's codes of row k lie; k is even where two share a byte.
template <Codes CODES>
static inline const uint8_t* codes_at(const Weight& w, int64_t panel, int64_t k) {
  const uint8_t* base = static_cast<const uint8_t*>(w.values);
  if constexpr (CODES == CODES4) return base + (panel * ((w.k + 1) / 2) + k / 2) * PANEL;
  return base + (panel * w.k + k) * PANEL;
}

// Calls group(g) at the start of each group and pair(k) or single(k) for its rows, over [from, to); `from` is even
// and no group of 4-bit codes has an odd end but the last.
template <Codes CODES, class OnGroup, class OnPair, class OnSingle>
static inline void walk(const Weight& w, int64_t from, int64_t to, OnGroup group, OnPair pair, OnSingle single) {
  int64_t k = from, g = from / w.group;
  while (k < to) {
    const int64_t end = (g + 1) * w.group < to ? (g + 1) * w.group : to;
    group(g++);
    if constexpr (CODES == CODES4) {
      for (; k + 1 < end; k += 2) pair(k);
    }
    for (; k < end; ++k) single(k);
  }
}

// Rows [from, to) of a panel to out[to - from][16].
template <Codes CODES, Zeros KIND>
static inline void dequantize(const Weight& w, int64_t panel, int64_t from, int64_t to, float* out) {
  const int64_t groups = (w.k + w.group - 1) / w.group;
  const uint8_t* codes = codes_at<CODES>(w, panel, 0);
  const Ints bias = all(w.code_bias);
  Group<KIND> own;
  walk<CODES>(
      w, from, to, [&](int64_t group) { own.read(w, panel, group, groups); },
      [&](int64_t k) {
        const Ints both = load_codes(codes + k / 2 * PANEL);
        store(out, own.value(low_half(both), bias));
        store(out + PANEL, own.value(high_half(both), bias));
        out += 2 * PANEL;
      },
      [&](int64_t k) {
        const Ints code = CODES == CODES4 ? low_half(load_codes(codes + k / 2 * PANEL)) : load_codes(codes + k * PANEL);
        store(out, own.value(code, bias));
        out += PANEL;
      });
}

}  // namespace HF_ISA
