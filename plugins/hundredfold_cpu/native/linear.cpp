// Linear layers: y[M, N] = x[M, K] @ w[N, K].T + bias[N], each output one chain of fused multiply-adds over
// ascending k, so that its bits depend on nothing else.
#include "vec.h"

namespace HF_ISA {

// w lies as [ceil(N / 16)][K][16]; columns past N are zero.
static void row(const float* x, int64_t k_len, const float* w, int64_t n, const float* bias, float* y) {
  for (int64_t first = 0; first < n; first += LANES, w += k_len * LANES) {
    Vec sum = zero();
    for (int64_t k = 0; k < k_len; ++k) sum = fma(broadcast(x[k]), load(w + k * LANES), sum);
    float out[LANES];
    store(out, sum);
    for (int64_t i = first; i < n && i < first + LANES; ++i) y[i] = bias ? out[i - first] + bias[i] : out[i - first];
  }
}

}  // namespace HF_ISA

HF_EXPORT(linear_f32)(const float* x, int64_t x_stride, int64_t m, const float* w, int64_t n, int64_t k,
                      const float* bias, float* y, int64_t y_stride) {
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < m; ++i) HF_ISA::row(x + i * x_stride, k, w, n, bias, y + i * y_stride);
}
