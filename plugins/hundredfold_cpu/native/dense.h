// Weights in bfloat16 as they lie, and what every bit of a product with them is.
//
// Columns are taken in blocks of 32, the last one filled up with zeros. The products of a block's even columns are one
// chain of fused multiply-adds that begins at zero, those of its odd columns another; both are added, and that to the
// sum of the blocks before. A number too small for a normal float counts as zero, wherever it appears. That is what a
// matrix unit (AMX) does for sixteen rows at once, and what every instruction set does for any number of them.
#pragma once

#include "vec_math.h"
#include "weight.h"

constexpr int64_t BLOCK = 32;  // columns

// Mirrored by hundredfold_cpu/dense_bf16.py.
struct DenseWeight {
  const uint16_t* values;  // [panels][blocks][16 pairs of columns][16][2], zero past n and k
  const float* bias;       // [n] or null
  int64_t n;
  int64_t k;

  int64_t panels() const { return (n + PANEL - 1) / PANEL; }
  int64_t blocks() const { return (k + BLOCK - 1) / BLOCK; }
  int64_t width() const { return blocks() * BLOCK * PANEL; }  // values of a panel
};

namespace HF_ISA {

// While it lives, the thread's floats are normal or zero.
class TinyIsZero {
#if defined(__x86_64__)
  static constexpr unsigned BITS = 0x8040;
  static unsigned get() { return __builtin_ia32_stmxcsr(); }
  static void set(unsigned control) { __builtin_ia32_ldmxcsr(control); }
  const unsigned before_ = get();
#elif defined(__aarch64__)
  static constexpr uint64_t BITS = 1 << 24;
  static uint64_t get() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
  const uint64_t before_ = get();
#else
  static constexpr int BITS = 0;
  static void set(int) {}
  const int before_ = 0;
#endif

 public:
  TinyIsZero() { set(before_ | BITS); }
  ~TinyIsZero() { set(before_); }
  TinyIsZero(const TinyIsZero&) = delete;
  TinyIsZero& operator=(const TinyIsZero&) = delete;
};

// Rows times weights. `x` are rows as the instruction set reads them, whole blocks each.
template <class Input>
struct DenseProduct {
  DenseWeight w;
  const Input* x;
  int64_t x_stride;
  int64_t m;
  uint16_t* y;
  int64_t y_stride;

  const uint16_t* values(int64_t panel) const { return w.values + panel * w.width(); }
  Vec with_bias(int64_t panel, const Vec& sums) const {
    const int64_t first = panel * PANEL;
    return w.bias ? add(sums, get_part(w.bias + first, w.n - first)) : sums;
  }
  void put_row(int64_t row, int64_t panel, const Vec& sums) const {
    const int64_t first = panel * PANEL;
    put_part(y + row * y_stride + first, with_bias(panel, sums), w.n - first);
  }
};

// Of few rows memory is the limit: so many values further on are asked for.
constexpr int64_t AHEAD = 2048;

}  // namespace HF_ISA
