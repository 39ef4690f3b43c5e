// Rows of a table by their numbers: embeddings in the form that the checkpoint has, angles by position.
//
// The arithmetic is that of hundredfold.plugin.dequantize, rounded where that rounds, so the bits are the same.
#include "team.h"
#include "vec_math.h"
#include "words.h"

namespace HF_ISA {

// Mirrored by hundredfold_cpu/lookup.py; all integers are 64 bits wide.
struct Table {
  const void* values;  // [rows][stride]
  const void *scales, *zeros;  // [rows][groups]; zeros null for none
  int64_t rows, columns, stride, group;
  int64_t kind;    // of values: 0 float, 1 uint8, 2 int8
  int64_t half;    // scales and zeros are half precision, else float
  int64_t offset;  // zeros are added to the product; else subtracted from the codes
  double factor;   // of every number, after rounding; 1 for none
};

// Element i of scales or zeros.
static inline float factor_at(const Table& table, const void* base, int64_t i) {
  if (!table.half) return static_cast<const float*>(base)[i];
  uint16_t halves[LANES] = {static_cast<const uint16_t*>(base)[i]};
  float wide[LANES];
  store(wide, load_half(halves));
  return wide[0];
}

template <class Code, class T>
static void grouped_row(const Table& table, int64_t row, T* out) {
  const Code* codes = static_cast<const Code*>(table.values) + row * table.stride;
  const int64_t groups = (table.columns + table.group - 1) / table.group;
  const bool zeros = table.zeros != nullptr;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * table.group, left = table.columns - first, count = left < table.group ? left : table.group;
    const Vec scale = broadcast(factor_at(table, table.scales, row * groups + g));
    const Vec zero_of = broadcast(zeros ? factor_at(table, table.zeros, row * groups + g) : 0.0f);
    for (int64_t i = 0; i < count; i += LANES) {
      const int64_t some = count - i < LANES ? count - i : LANES;
      float wide[LANES] = {};
      for (int64_t j = 0; j < some; ++j) wide[j] = float(codes[first + i + j]);
      Vec value = load(wide);
      if (zeros && !table.offset) value = sub(value, zero_of);
      value = mul(value, scale);
      if (zeros && table.offset) value = add(value, zero_of);
      put_part(out + first + i, value, some);
    }
  }
}

template <class T>
static void lookup(const Table& table, const int64_t* ids, int64_t first, int64_t last, T* out, int64_t out_stride) {
  for (int64_t i = first; i < last; ++i) {
    T* own = out + i * out_stride;
    if (ids[i] < 0 || ids[i] >= table.rows) {  // what comes of it is no number, which ends that row's request
      for (int64_t d = 0; d < table.columns; d += LANES)
        put_part(own + d, broadcast(__builtin_nanf("")), table.columns - d);
      continue;
    }
    if (table.kind == 0) {
      const float* values = static_cast<const float*>(table.values) + ids[i] * table.stride;
      for (int64_t d = 0; d < table.columns; d += LANES)
        put_part(own + d, get_part(values + d, table.columns - d), table.columns - d);
    } else if (table.kind == 1) {
      grouped_row<uint8_t>(table, ids[i], own);
    } else {
      grouped_row<int8_t>(table, ids[i], own);
    }
    if (table.factor != 1) {
      const Vec factor = broadcast(float(table.factor));
      for (int64_t d = 0; d < table.columns; d += LANES)
        put_part(own + d, mul(get_part(own + d, table.columns - d), factor), table.columns - d);
    }
  }
}

constexpr int64_t TEAM_SHARE = 1 << 11;  // columns that a thread of a team gets at a time

template <class T>
static void lookup(const Table& table, const int64_t* ids, int64_t rows, T* out, int64_t out_stride) {
  if (!in_team()) return lookup(table, ids, 0, rows, out, out_stride);
  by_team(rows, 1 + TEAM_SHARE / table.columns, [&](int64_t first, int64_t last) { lookup(table, ids, first, last, out, out_stride); });
}

}  // namespace HF_ISA

HF_EXPORT(lookup_f32)
(const HF_ISA::Table* table, const int64_t* ids, int64_t rows, float* out, int64_t out_stride) {
  HF_ISA::lookup(*table, ids, rows, out, out_stride);
}

HF_EXPORT(lookup_bf16)
(const HF_ISA::Table* table, const int64_t* ids, int64_t rows, uint16_t* out, int64_t out_stride) {
  HF_ISA::lookup(*table, ids, rows, out, out_stride);
}

HF_WORDS(lookup_f32)
HF_WORDS(lookup_bf16)
