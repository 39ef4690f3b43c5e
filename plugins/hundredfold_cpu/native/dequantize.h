// Packed codes to floats in panels: the very numbers that hundredfold.plugin.dequantize gives.
#pragma once

#include "vec.h"
#include "weight.h"

namespace HF_ISA {

template <bool HALF>
static inline Vec load_scale(const void* base, int64_t at) {
  if constexpr (HALF) {
    return load_half(static_cast<const uint16_t*>(base) + at);
  } else {
    return load(static_cast<const float*>(base) + at);
  }
}

// The scale and zero of one group of one panel.
template <Zeros KIND, bool HALF>
struct Group {
  Vec scale, zero;

  void read(const Weight& w, int64_t panel, int64_t group, int64_t groups) {
    const int64_t at = (panel * groups + group) * PANEL;
    scale = load_scale<HALF>(w.scales, at);
    if constexpr (KIND != NO_ZEROS) zero = load_scale<HALF>(w.zeros, at);
  }

  Vec value(Vec code) const {
    if constexpr (KIND == NO_ZEROS) return mul(code, scale);
    if constexpr (KIND == POINTS) return mul(sub(code, zero), scale);
    // The product of a code of 8 bits and a half of 11 is exact, so that one rounding is all there is to do.
    if constexpr (HALF) return fma(code, scale, zero);
    return add(mul(code, scale), zero);
  }
};

// Rows [from, to) of a panel to out[to - from][16]; `from` is even. No group of 4-bit codes has an odd end.
template <Codes CODES, Zeros KIND, bool HALF>
static inline void dequantize(const Weight& w, int64_t panel, int64_t from, int64_t to, float* out) {
  const int64_t groups = (w.k + w.group - 1) / w.group;
  const int64_t rows = CODES == CODES4 ? (w.k + 1) / 2 : w.k;
  const uint8_t* codes = static_cast<const uint8_t*>(w.values) + panel * rows * PANEL;
  const Ints bias = all(w.code_bias);
  Group<KIND, HALF> own;
  for (int64_t k = from; k < to;) {
    const int64_t group = k / w.group;
    const int64_t end = (group + 1) * w.group < to ? (group + 1) * w.group : to;
    own.read(w, panel, group, groups);
    if constexpr (CODES == CODES4) {
      for (; k + 1 < end; k += 2, out += 2 * PANEL) {
        const Ints pair = load_codes(codes + k / 2 * PANEL);
        Ints low = low_half(pair), high = high_half(pair);
        if constexpr (KIND == NO_ZEROS) low = minus(low, bias), high = minus(high, bias);
        store(out, own.value(to_float(low)));
        store(out + PANEL, own.value(to_float(high)));
      }
      if (k < end) {
        Ints low = low_half(load_codes(codes + k / 2 * PANEL));
        if constexpr (KIND == NO_ZEROS) low = minus(low, bias);
        store(out, own.value(to_float(low)));
        ++k, out += PANEL;
      }
    } else {
      for (; k < end; ++k, out += PANEL) {
        Ints code = load_codes(codes + k * PANEL);
        if constexpr (KIND == NO_ZEROS) code = minus(code, bias);
        store(out, own.value(to_float(code)));
      }
    }
  }
}

}  // namespace HF_ISA
