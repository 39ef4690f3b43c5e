// Grouped integers to quads, once at load; see grouped.h.
#include <cstring>

#include "grouped.h"

#define HF_PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

// Calls put(panel, c, quad, four codes) for all; columns past n and k are 0.
template <class Put>
void for_quads(const GroupedWeight& w, const uint8_t* codes, int64_t stride, int64_t shift, Put put) {
  const int64_t panels = w.panels(), groups = w.groups();
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t c = 0; c < PANEL; ++c) {
      const int64_t row = panel * PANEL + c;
      int64_t quad = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t columns = w.columns_of(g);
        for (int64_t from = 0; from < columns; from += QUAD, ++quad) {
          uint8_t four[QUAD] = {};
          for (int64_t j = 0; row < w.n && j < QUAD && from + j < columns; ++j)
            four[j] = uint8_t(codes[row * stride + g * w.group + from + j] + shift);
          put(panel, c, quad, four);
        }
      }
    }
  }
}

}  // namespace

// codes[n][k], rows `stride` apart, each plus `shift` (modulo 256 and below 2^bits), to `out` as w.bits says.
HF_PUBLIC void hf_pack_grouped(const GroupedWeight* w, const uint8_t* codes, int64_t stride, int64_t shift, uint8_t* out) {
  const int64_t quads = w->quads();
  if (w->bits == 8) {
    return for_quads(*w, codes, stride, shift, [=](int64_t panel, int64_t c, int64_t quad, const uint8_t* four) {
      std::memcpy(out + (panel * quads + quad) * QUAD_BYTES + c * QUAD, four, QUAD);
    });
  }
  constexpr int64_t HALF = PANEL / 2;
  for_quads(*w, codes, stride, shift, [=](int64_t panel, int64_t c, int64_t quad, const uint8_t* four) {
    uint8_t* to = out + (panel * quads + quad) * (QUAD_BYTES / 2) + c % HALF * QUAD;
    // The low half comes first and overwrites what was there.
    for (int j = 0; j < QUAD; ++j) to[j] = c < HALF ? four[j] : uint8_t(to[j] | four[j] << 4);
  });
}
