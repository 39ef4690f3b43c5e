// A product of few rows as a team computes it: some panels at a time.
#pragma once

#include <cstring>
#include <type_traits>

#include "team.h"
#include "weight.h"

namespace HF_ISA {

// Multiplications that a thread of a team gets at a time: panels one after the other are what memory is quickest at.
constexpr int64_t TEAM_SHARE = 1 << 17;

// P is a product with `w`, `m`, `y` and `y_stride` that computes panels one by one.
template <class P>
struct TeamPanels {
  P whole;
  int64_t at_once;

  using Element = std::remove_pointer_t<decltype(P::y)>;
  int64_t columns() const { return at_once * PANEL; }

  static void compute(const void* context, int64_t part, int64_t, void* room) {
    const TeamPanels& own = *static_cast<const TeamPanels*>(context);
    const int64_t first = part * own.at_once, panels = own.whole.w.panels();
    P job = own.whole;
    job.y = static_cast<Element*>(room) - first * PANEL, job.y_stride = own.columns();
    for (int64_t panel = first; panel < first + own.at_once && panel < panels; ++panel) job.panel(panel);
  }
  static void put(const void* context, int64_t part, const void* room) {
    const TeamPanels& own = *static_cast<const TeamPanels*>(context);
    const P& whole = own.whole;
    const int64_t first = part * own.columns(), left = whole.w.n - first, count = left < own.columns() ? left : own.columns();
    for (int64_t row = 0; row < whole.m; ++row)
      std::memcpy(whole.y + row * whole.y_stride + first, static_cast<const Element*>(room) + row * own.columns(),
                  size_t(count) * sizeof(Element));
  }
  static TeamPanels of(const P& whole) {
    const int64_t least = (whole.w.panels() + Job::MOST_PARTS - 1) / Job::MOST_PARTS;
    const int64_t wanted = 1 + TEAM_SHARE / (whole.m * whole.w.k * PANEL);
    return {whole, wanted < least ? least : wanted};
  }
  // Whether its result has room.
  bool fits() const { return columns() * whole.m * int64_t(sizeof(Element)) <= int64_t(Job::ROOM); }
  void run() const {
    Job job = Job::of((whole.w.panels() + at_once - 1) / at_once, *this);
    job.compute = compute, job.put = put;
    run_by_team(job);
  }
};

}  // namespace HF_ISA
