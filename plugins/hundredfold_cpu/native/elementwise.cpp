// Norms, rotation and gated activations: float32 or bfloat16 in memory, float32 in between, rounded once.
//
// Each row is one item and its sums have one order, so that neither other rows nor threads change its bits.
#include "team.h"
#include "vec_math.h"
#include "words.h"

namespace HF_ISA {

constexpr int64_t SERIAL = 1 << 14;     // elements below which waking other threads costs more than it saves
constexpr int64_t TEAM_SHARE = 1 << 11;  // elements that a thread of a team gets at a time

static int64_t rows_at_once(int64_t rows) { return rows > 256 ? 16 : 4; }

// f(row) for all rows, of so many elements each.
template <class F>
static void for_rows(int64_t rows, int64_t elements, const F& f) {
  if (in_team()) {
    return by_team(rows, 1 + TEAM_SHARE / elements, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) f(row);
    });
  }
#pragma omp parallel for schedule(dynamic, rows_at_once(rows)) if (rows * elements > SERIAL)
  for (int64_t row = 0; row < rows; ++row) f(row);
}

// 1 / sqrt(mean(x^2) + eps)
template <class T>
static float inverse_rms(const T* x, int64_t n, float eps) {
  Vec part[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0, turn = 0; i < n; i += LANES, ++turn) {
    const Vec v = get_part(x + i, n - i);
    part[turn & 3] = fma(v, v, part[turn & 3]);
  }
  const float total = sum(add(add(part[0], part[1]), add(part[2], part[3])));
  return 1.0f / __builtin_sqrtf(total / float(n) + eps);
}

template <class T>
static void norm_row(const T* x, int64_t n, const float* weight, float eps, T* out) {
  const Vec factor = broadcast(inverse_rms(x, n, eps));
  for (int64_t i = 0; i < n; i += LANES) {
    const Vec v = mul(mul(get_part(x + i, n - i), factor), get_part(weight + i, n - i));
    put_part(out + i, v, n - i);
  }
}

template <class T>
static void rms_norm(const T* x, int64_t tokens, int64_t heads, int64_t token_stride, int64_t head_stride, int64_t n,
                     const float* weight, float eps, T* out, int64_t out_token_stride, int64_t out_head_stride) {
  const int64_t rows = tokens * heads;
  for_rows(rows, n, [&](int64_t row) {
    const int64_t token = row / heads, head = row % heads;
    norm_row(x + token * token_stride + head * head_stride, n, weight, eps,
             out + token * out_token_stride + head * out_head_stride);
  });
}

template <class T>
static void add_row(T* sum_of, const T* added, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES)
    put_part(sum_of + i, add(get_part(sum_of + i, n - i), get_part(added + i, n - i)), n - i);
}

template <class T>
static void add_rows(T* residual, int64_t residual_stride, const T* x, int64_t stride, int64_t rows, int64_t n) {
  for_rows(rows, n, [&](int64_t row) { add_row(residual + row * residual_stride, x + row * stride, n); });
}

template <class T>
static void add_rms_norm(T* residual, int64_t residual_stride, const T* x, int64_t stride, int64_t rows, int64_t n,
                         const float* weight, float eps, T* out, int64_t out_stride) {
  for_rows(rows, n, [&](int64_t row) {
    T* sum_of = residual + row * residual_stride;
    add_row(sum_of, x + row * stride, n);
    norm_row(sum_of, n, weight, eps, out + row * out_stride);
  });
}

// Pairs that lie `dim / 2` apart; `angles` holds cosine and sine of each.
template <class T>
static void rotate_halves(T* x, int64_t heads, int64_t stride, int64_t dim, const float* angles) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += LANES) {
    const int64_t count = half - i < LANES ? half - i : LANES;
    float cosines[LANES] = {}, sines[LANES] = {};
    for (int64_t j = 0; j < count; ++j) {
      cosines[j] = angles[2 * (i + j)];
      sines[j] = angles[2 * (i + j) + 1];
    }
    const Vec cosine = load(cosines), sine = load(sines);
    for (int64_t head = 0; head < heads; ++head) {
      T *first = x + head * stride + i, *second = first + half;
      const Vec a = get_part(first, count), b = get_part(second, count);
      put_part(first, fma(a, cosine, negate(mul(b, sine))), count);
      put_part(second, fma(b, cosine, mul(a, sine)), count);
    }
  }
}

// Pairs that lie side by side.
template <class T>
static void rotate_pairs(T* x, int64_t heads, int64_t stride, int64_t dim, const float* angles) {
  for (int64_t i = 0; i < dim; i += LANES) {
    const int64_t count = dim - i < LANES ? dim - i : LANES;
    float cosines[LANES] = {}, sines[LANES] = {};
    for (int64_t j = 0; j < count; j += 2) {
      cosines[j] = cosines[j + 1] = angles[i + j];
      sines[j] = -angles[i + j + 1];
      sines[j + 1] = angles[i + j + 1];
    }
    const Vec cosine = load(cosines), sine = load(sines);
    for (int64_t head = 0; head < heads; ++head) {
      T* part = x + head * stride + i;
      const Vec v = get_part(part, count);
      put_part(part, fma(v, cosine, mul(swap_pairs(v), sine)), count);
    }
  }
}

template <class T>
static void rotate(T* x, int64_t tokens, int64_t heads, int64_t token_stride, int64_t head_stride, int64_t dim,
                   int64_t pairs, const float* angles) {
  for_rows(tokens, heads * dim, [&](int64_t token) {
    T* own = x + token * token_stride;
    if (pairs)
      rotate_pairs(own, heads, head_stride, dim, angles + token * dim);
    else
      rotate_halves(own, heads, head_stride, dim, angles + token * dim);
  });
}

struct Silu {
  static Vec open(const Vec& x) { return mul(x, sigmoid(x)); }
};

// x / 2 * (1 + tanh(y)) is x * sigmoid(2 y)
struct GeluTanh {
  static Vec open(const Vec& x) {
    const Vec cube = fma(mul(x, x), broadcast(0.044715f), broadcast(1.0f));
    return mul(x, sigmoid(mul(mul(x, cube), broadcast(1.5957691216f))));
  }
};

struct Gelu {
  // The error function's complement by a Chebyshev fit, relative error 1.2e-7 (Numerical Recipes, erfcc).
  static Vec complement(const Vec& z) {
    const Vec t = div(broadcast(1.0f), fma(z, broadcast(0.5f), broadcast(1.0f)));
    Vec p = broadcast(0.17087277f);
    p = fma(p, t, broadcast(-0.82215223f));
    p = fma(p, t, broadcast(1.48851587f));
    p = fma(p, t, broadcast(-1.13520398f));
    p = fma(p, t, broadcast(0.27886807f));
    p = fma(p, t, broadcast(-0.18628806f));
    p = fma(p, t, broadcast(0.09678418f));
    p = fma(p, t, broadcast(0.37409196f));
    p = fma(p, t, broadcast(1.00002368f));
    p = fma(p, t, broadcast(-1.26551223f));
    return mul(t, exp(fma(negate(z), z, p)));
  }
  static Vec open(const Vec& x) {
    const Vec below = mul(complement(mul(max(x, negate(x)), broadcast(0.70710678f))), broadcast(0.5f));
    return mul(x, where_less(x, zero(), below, sub(broadcast(1.0f), below)));
  }
};

template <class Gate, class T>
static void gated_row(const T* gate, const T* up, int64_t first, int64_t n, T* out) {
  for (int64_t i = first; i < n; i += LANES)
    put_part(out + i, mul(Gate::open(get_part(gate + i, n - i)), get_part(up + i, n - i)), n - i);
}

template <class Gate>
static void gated_row(const float* gate, const float* up, int64_t n, float* out) {
  gated_row<Gate>(gate, up, 0, n, out);
}

// Pairs of bfloat16 are taken apart and put together with less work than rows of them.
template <class Gate>
static void gated_row(const uint16_t* gate, const uint16_t* up, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    Vec gates[2], ups[2];
    load_bf16_pairs(gate + i, gates[0], gates[1]);
    load_bf16_pairs(up + i, ups[0], ups[1]);
    store_bf16_pairs(out + i, mul(Gate::open(gates[0]), ups[0]), mul(Gate::open(gates[1]), ups[1]));
  }
  gated_row<Gate>(gate, up, i, n, out);
}

template <class Gate, class T>
static void gated(const T* x, int64_t rows, int64_t stride, int64_t n, T* out, int64_t out_stride) {
  for_rows(rows, n, [&](int64_t row) {
    const T* own = x + row * stride;
    gated_row<Gate>(own, own + n, n, out + row * out_stride);
  });
}

template <class T>
static void gated(const T* x, int64_t rows, int64_t stride, int64_t n, int64_t activation, T* out, int64_t out_stride) {
  if (activation == 0) return gated<Silu>(x, rows, stride, n, out, out_stride);
  if (activation == 1) return gated<Gelu>(x, rows, stride, n, out, out_stride);
  return gated<GeluTanh>(x, rows, stride, n, out, out_stride);
}

}  // namespace HF_ISA

#define HF_ELEMENTWISE(T, suffix)                                                                                      \
  HF_EXPORT(rms_norm_##suffix)(const T* x, int64_t tokens, int64_t heads, int64_t token_stride, int64_t head_stride,   \
                               int64_t n, const float* weight, float eps, T* out, int64_t out_token_stride,            \
                               int64_t out_head_stride) {                                                              \
    HF_ISA::rms_norm(x, tokens, heads, token_stride, head_stride, n, weight, eps, out, out_token_stride,               \
                     out_head_stride);                                                                                 \
  }                                                                                                                    \
  HF_EXPORT(add_##suffix)(T* residual, int64_t residual_stride, const T* x, int64_t stride, int64_t rows, int64_t n) { \
    HF_ISA::add_rows(residual, residual_stride, x, stride, rows, n);                                                   \
  }                                                                                                                    \
  HF_EXPORT(add_rms_norm_##suffix)(T* residual, int64_t residual_stride, const T* x, int64_t stride, int64_t rows,     \
                                   int64_t n, const float* weight, float eps, T* out, int64_t out_stride) {            \
    HF_ISA::add_rms_norm(residual, residual_stride, x, stride, rows, n, weight, eps, out, out_stride);                 \
  }                                                                                                                    \
  HF_EXPORT(rotate_##suffix)(T* x, int64_t tokens, int64_t heads, int64_t token_stride, int64_t head_stride,           \
                             int64_t dim, int64_t pairs, const float* angles) {                                        \
    HF_ISA::rotate(x, tokens, heads, token_stride, head_stride, dim, pairs, angles);                                   \
  }                                                                                                                    \
  HF_EXPORT(gated_##suffix)(const T* x, int64_t rows, int64_t stride, int64_t n, int64_t activation, T* out,           \
                            int64_t out_stride) {                                                                      \
    HF_ISA::gated(x, rows, stride, n, activation, out, out_stride);                                                    \
  }                                                                                                                    \
  HF_WORDS(rms_norm_##suffix)                                                                                          \
  HF_WORDS(add_##suffix)                                                                                               \
  HF_WORDS(add_rms_norm_##suffix)                                                                                      \
  HF_WORDS(rotate_##suffix)                                                                                            \
  HF_WORDS(gated_##suffix)

HF_ELEMENTWISE(float, f32)
HF_ELEMENTWISE(uint16_t, bf16)
