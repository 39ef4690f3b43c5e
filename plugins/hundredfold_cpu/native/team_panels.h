// A product as a team computes it: some panels at a time.
#pragma once

#include <cstring>
#include <type_traits>

#include "lines.h"
#include "team.h"
#include "weight.h"

namespace HF_ISA {

// Rows are short: a call for each would take longer than its copy.
static inline void copy_row(const void* from, int64_t bytes, void* to, bool to_memory) {
  int64_t done = 0;
  for (; done + LINE <= bytes; done += LINE) {
    const char* line = static_cast<const char*>(from) + done;
    to_memory ? line_to_memory(line, static_cast<char*>(to) + done) : void(std::memcpy(static_cast<char*>(to) + done, line, LINE));
  }
  if (done < bytes) std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, size_t(bytes - done));
}

// compute(product, first, last) of panels, where P is a product with `w`, `m`, `y` and `y_stride`. A part is so many times
// `together` panels that they have about `share` multiplications.
template <class P, class F>
static void panels_by_team(const P& whole, int64_t together, int64_t share, const F& compute) {
  using Element = std::remove_pointer_t<decltype(P::y)>;
  const int64_t panels = whole.w.panels(), groups = (panels + together - 1) / together, columns = together * PANEL;
  const bool whole_lines = columns * int64_t(sizeof(Element)) % LINE == 0;
  const bool to_memory = whole_lines && goes_to_memory(whole.y, whole.m, whole.y_stride * int64_t(sizeof(Element)));
  const auto compute_part = [&](int64_t first, int64_t last, void* room) {
    P own = whole;
    for (int64_t row = 0; row < whole.m && !to_memory; ++row)
      for (int64_t column = first * columns; column < last * columns; column += LINE / int64_t(sizeof(Element)))
        expect_write(whole.y + row * whole.y_stride + column);
    own.y_stride = (last - first) * columns, own.y = static_cast<Element*>(room) - first * columns;
    compute(own, first * together, last * together < panels ? last * together : panels);
  };
  const auto put = [&](int64_t first, int64_t last, void* room) {
    const int64_t stride = (last - first) * columns, end = last * columns < whole.w.n ? last * columns : whole.w.n;
    for (int64_t row = 0; row < whole.m; ++row)
      copy_row(static_cast<const Element*>(room) + row * stride, (end - first * columns) * int64_t(sizeof(Element)),
               whole.y + row * whole.y_stride + first * columns, to_memory);
    if (to_memory) lines_are_in_memory();
  };
  const int64_t each = 1 + share / (whole.m * whole.w.k * columns);
  by_team(groups, each, size_t(whole.m * columns) * sizeof(Element), compute_part, put);
}

}  // namespace HF_ISA
