// Weights to panels, once at load; see weight.h.
#include <cstdint>
#include <cstring>

#include "weight.h"

#define HF_PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

// Calls put(panel, columns) for each panel of n outputs, with how many of its columns they fill.
template <class Put>
void for_panels(int64_t n, Put put) {
  const int64_t panels = (n + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t columns = n - panel * PANEL < PANEL ? n - panel * PANEL : PANEL;
    put(panel, columns);
  }
}

// The first k elements of a panel's rows, each of which is `stride` long, to out[k][16], `get` applied to each.
template <class From, class To, class Get>
void transpose(const From* rows, int64_t stride, int64_t columns, int64_t k, To* out, Get get) {
  if (columns == PANEL) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t c = 0; c < PANEL; ++c) out[i * PANEL + c] = get(rows[c * stride + i]);
    }
  } else {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t c = 0; c < PANEL; ++c) out[i * PANEL + c] = c < columns ? get(rows[c * stride + i]) : To(0);
    }
  }
}

}  // namespace

// w[n][k], rows `stride` apart, to float [panels][k][16].
HF_PUBLIC void hf_pack_dense(const float* w, int64_t stride, int64_t n, int64_t k, float* out) {
  for_panels(n, [=](int64_t panel, int64_t columns) {
    transpose(w + panel * PANEL * stride, stride, columns, k, out + panel * k * PANEL, [](float x) { return x; });
  });
}

// w[n][k] in bfloat16, rows `stride` apart, to bfloat16 [panels][blocks][16][16][2]; see dense.h.
HF_PUBLIC void hf_pack_dense_bf16(const uint16_t* w, int64_t stride, int64_t n, int64_t k, uint16_t* out) {
  constexpr int64_t BLOCK = 32;
  const int64_t padded = (k + BLOCK - 1) / BLOCK * BLOCK;
  for_panels(n, [=](int64_t panel, int64_t columns) {
    const uint16_t* from = w + panel * PANEL * stride;
    uint16_t* to = out + panel * padded * PANEL;
    for (int64_t i = 0; i < padded; i += 2, to += 2 * PANEL) {
      for (int64_t c = 0; c < PANEL; ++c) {
        to[2 * c] = c < columns && i < k ? from[c * stride + i] : 0;
        to[2 * c + 1] = c < columns && i + 1 < k ? from[c * stride + i + 1] : 0;
      }
    }
  });
}

// codes[n][k], rows `stride` apart, each plus `bias` (modulo 256), to 8-bit panels.
HF_PUBLIC void hf_pack_codes8(const uint8_t* codes, int64_t stride, int64_t n, int64_t k, int64_t bias, uint8_t* out) {
  for_panels(n, [=](int64_t panel, int64_t columns) {
    transpose(codes + panel * PANEL * stride, stride, columns, k, out + panel * k * PANEL,
              [=](uint8_t code) { return uint8_t(code + bias); });
  });
}

// The same to 4-bit panels; codes plus bias are below 16.
HF_PUBLIC void hf_pack_codes4(const uint8_t* codes, int64_t stride, int64_t n, int64_t k, int64_t bias, uint8_t* out) {
  constexpr int64_t PIECE = 64;
  const int64_t pairs = (k + 1) / 2;
  for_panels(n, [=](int64_t panel, int64_t columns) {
    uint8_t* to = out + panel * pairs * PANEL;
    uint8_t whole[PIECE * PANEL];
    for (int64_t from = 0; from < k; from += PIECE) {
      const int64_t length = k - from < PIECE ? k - from : PIECE;
      transpose(codes + panel * PANEL * stride + from, stride, columns, length, whole,
                [=](uint8_t code) { return uint8_t((code + bias) & 15); });
      if (length % 2) std::memset(whole + length * PANEL, 0, PANEL);
      for (int64_t i = 0; i < length; i += 2, to += PANEL) {
        for (int64_t c = 0; c < PANEL; ++c) to[c] = uint8_t(whole[i * PANEL + c] | whole[(i + 1) * PANEL + c] << 4);
      }
    }
  });
}
