// Integers by channel times rows of codes, sums in registers.
#pragma once

#include "channel.h"
#include "workspace.h"

namespace HF_ISA {

// R rows times P panels. `wide` holds the panels' codes as 16 bits; null: they are read where they lie.
template <int R, int P, bool WIDE, class T>
static void channel_tile(const ChannelProduct<T>& job, int64_t panel, int64_t row, const int16_t* wide) {
  const ChannelWeight& w = job.w;
  const int64_t width = job.width(), steps = job.steps();
  const int8_t* codes = w.codes + panel * width;
  const Code* x = job.x + row * job.x_stride;
  Sum sums[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sums[r][p] = load_sum(w.correction + (panel + p) * PANEL);
  }
#pragma GCC unroll 2
  for (int64_t step = 0; step < steps; ++step) {
    Weights weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const int64_t at = p * width + step * PANEL * STEP;
      if constexpr (WIDE) {
        weights[p] = from_wide(wide + at);
      } else {
        weights[p] = from_codes(codes + at);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Input input = broadcast_input(x + r * job.x_stride + step * STEP);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[r][p] = dot(sums[r][p], weights[p], input);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const Vec scale = broadcast(job.scales[row + r]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) job.put_row(row + r, panel + p, sums[r][p], scale);
  }
}

// All rows times P panels, in tiles of R and, for what is left, of fewer.
template <int R, int P, bool WIDE, class T>
static int64_t channel_tiles(const ChannelProduct<T>& job, int64_t panel, int64_t row, const int16_t* wide) {
  for (; row + R <= job.m; row += R) channel_tile<R, P, WIDE>(job, panel, row, wide);
  if constexpr (R > 1) return channel_tiles<R / 2, P, WIDE>(job, panel, row, wide);
  return row;
}

// Rows from which widening a panel once is less work than doing so in every tile.
constexpr int64_t WIDE_ROWS = 2 * ROWS;

template <int P, class T>
static void channel_rows(const ChannelProduct<T>& job, int64_t panel) {
  if constexpr (WIDENS) {
    if (job.m >= WIDE_ROWS) {
      const int64_t codes = P * job.width();
      int16_t* wide = static_cast<int16_t*>(workspace(Workspace::PANEL, size_t(codes) * sizeof(int16_t)));
      const int8_t* from = job.w.codes + panel * job.width();
      for (int64_t i = 0; i < codes; i += PANEL * STEP) widen(from + i, wide + i);
      channel_tiles<ROWS, P, true>(job, panel, 0, wide);
      return;
    }
  }
  channel_tiles<ROWS, P, false>(job, panel, 0, nullptr);
}

// Of few rows memory is the limit: panels are read one after the other, and asked for a good while ahead.
constexpr int64_t AHEAD = 4096;

// R rows times a panel; each row has SPLIT sums, so that one need not wait for the last.
template <int R, int SPLIT, class T>
static void channel_few(const ChannelProduct<T>& job, int64_t panel) {
  const int64_t steps = job.steps(), whole = steps / SPLIT * SPLIT;
  const int8_t* codes = job.w.codes + panel * job.width();
  Sum sums[R][SPLIT];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    sums[r][0] = load_sum(job.w.correction + panel * PANEL);
#pragma GCC unroll 4
    for (int s = 1; s < SPLIT; ++s) sums[r][s] = no_sum();
  }
  const auto add_step = [&](int64_t step, int s) {
    const int8_t* own = codes + step * PANEL * STEP;
    expect_read(own + AHEAD);
    const Weights weights = from_codes(own);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r][s] = dot(sums[r][s], weights, broadcast_input(job.x + r * job.x_stride + step * STEP));
  };
  for (int64_t step = 0; step < whole; step += SPLIT) {
#pragma GCC unroll 4
    for (int s = 0; s < SPLIT; ++s) add_step(step + s, s);
  }
  for (int64_t step = whole; step < steps; ++step) add_step(step, 0);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int s = 1; s < SPLIT; ++s) sums[r][0] = plus(sums[r][0], sums[r][s]);
    job.put_row(r, panel, sums[r][0], broadcast(job.scales[r]));
  }
}

// Rows that one pass over a panel computes.
constexpr int FEW_ROWS = HF_ISA_NUMBER >= HF_AVX512 ? 8 : 3;

template <class T>
static void channel_few(const ChannelProduct<T>& job, int64_t panel) {
  switch (job.m) {
    case 1: return channel_few<1, 4>(job, panel);
    case 2: return channel_few<2, 2>(job, panel);
    case 3: return channel_few<3, 2>(job, panel);
  }
  if constexpr (FEW_ROWS > 3) {
    switch (job.m) {
      case 4: return channel_few<4, 1>(job, panel);
      case 5: return channel_few<5, 1>(job, panel);
      case 6: return channel_few<6, 1>(job, panel);
      case 7: return channel_few<7, 1>(job, panel);
      case 8: return channel_few<8, 1>(job, panel);
    }
  }
}

}  // namespace HF_ISA
