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
#pragma omp parallel for schedule(static)
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t columns = n - panel * PANEL < PANEL ? n - panel * PANEL : PANEL;
    put(panel, columns);
  }
}

}  // namespace

// w[n][k], rows `stride` apart, to float [panels][k][16].
HF_PUBLIC void hf_pack_dense(const float* w, int64_t stride, int64_t n, int64_t k, float* out) {
  for_panels(n, [=](int64_t panel, int64_t columns) {
    float* to = out + panel * k * PANEL;
    const float* from = w + panel * PANEL * stride;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t c = 0; c < PANEL; ++c) to[i * PANEL + c] = c < columns ? from[c * stride + i] : 0.0f;
    }
  });
}

// codes[n][k], rows `stride` apart, each plus `bias` (modulo 256), to 8-bit panels.
HF_PUBLIC void hf_pack_codes8(const uint8_t* codes, int64_t stride, int64_t n, int64_t k, int64_t bias, uint8_t* out) {
  for_panels(n, [=](int64_t panel, int64_t columns) {
    uint8_t* to = out + panel * k * PANEL;
    const uint8_t* from = codes + panel * PANEL * stride;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t c = 0; c < PANEL; ++c) to[i * PANEL + c] = c < columns ? uint8_t(from[c * stride + i] + bias) : 0;
    }
  });
}

// The same to 4-bit panels; codes plus bias are below 16.
HF_PUBLIC void hf_pack_codes4(const uint8_t* codes, int64_t stride, int64_t n, int64_t k, int64_t bias, uint8_t* out) {
  const int64_t pairs = (k + 1) / 2;
  for_panels(n, [=](int64_t panel, int64_t columns) {
    uint8_t* to = out + panel * pairs * PANEL;
    const uint8_t* from = codes + panel * PANEL * stride;
    std::memset(to, 0, pairs * PANEL);
    for (int64_t c = 0; c < columns; ++c) {
      const uint8_t* row = from + c * stride;
      for (int64_t i = 0; i < k; ++i) to[i / 2 * PANEL + c] |= uint8_t((row[i] + bias) & 15) << (i % 2 * 4);
    }
  });
}
