// Outputs that are so large that their lines should go to memory at once.
#pragma once

#include <cstring>

#include "vec.h"

namespace HF_ISA {

constexpr int64_t LINE = 64;  // bytes of a cache's line

// Whether rows of so many bytes are such an output: caches would lose its lines before anyone reads them, and a line that is
// written as a whole need not be fetched first.
static inline bool goes_to_memory(const void* out, int64_t rows, int64_t row_bytes) {
  constexpr int64_t LARGE = 8 << 20;
  return rows * row_bytes >= LARGE && (reinterpret_cast<int64_t>(out) | row_bytes) % LINE == 0;
}

// `to` is aligned.
static inline void line_to_memory(const void* line, void* to) {
#if HF_ISA_NUMBER >= HF_AVX512
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(line));
#else
  std::memcpy(to, line, LINE);
#endif
}

// After the last line, before anyone is told that it is there.
static inline void lines_are_in_memory() {
#if HF_ISA_NUMBER >= HF_AVX512
  _mm_sfence();
#endif
}

}  // namespace HF_ISA
