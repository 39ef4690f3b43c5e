// Runs a list of calls, one after the other; those that compute each row by itself, block after block of rows.
#include <cstdint>

#include "team.h"

#ifdef _OPENMP
#include <omp.h>
#endif

// Mirrored by hundredfold_cpu/program.py.
struct Call {
  void (*function)(const int64_t* words);
  int64_t* words;
  int64_t rows_at;         // which word is the number of rows; negative for none
  const int64_t* per_row;  // of each word what is added for a row; null where rows cannot be computed apart
  int64_t num_words;
};

namespace {

// Rows of a block: few enough for a second-level cache to keep what the calls hand each other, and enough for all weights
// to be worth their way into it; whole tiles.
constexpr int64_t LEAST = 48, MOST = 96, TILE = 12;
// Rows from which it pays, and of each thread at least a block: with fewer, threads share out a product more evenly by
// its columns.
constexpr int64_t MANY_ROWS = 384;
constexpr int64_t MOST_WORDS = 16;  // of a call

int64_t threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// The size with which the thread that has most gets least, and of such sizes the largest.
int64_t block_size(int64_t rows) {
  int64_t best = LEAST, best_share = INT64_MAX;
  for (int64_t size = LEAST; size <= MOST; size += TILE) {
    const int64_t blocks = (rows + size - 1) / size, share = (blocks + threads() - 1) / threads() * size;
    if (share <= best_share) best = size, best_share = share;
  }
  return best;
}

void set_rows(const Call& call, int64_t rows) {
  if (call.rows_at >= 0) call.words[call.rows_at] = rows;
}

// A thread takes its rows through all calls: what one writes, the next finds in the same processor's cache.
void run_blocks(const Call* calls, int64_t count, int64_t rows) {
  const int64_t size = block_size(rows), blocks = (rows + size - 1) / size;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * size;
    for (int64_t i = 0; i < count; ++i) {
      const Call& call = calls[i];
      int64_t words[MOST_WORDS];
      for (int64_t w = 0; w < call.num_words; ++w) words[w] = call.words[w] + call.per_row[w] * first;
      words[call.rows_at] = first + size < rows ? size : rows - first;
      call.function(words);
    }
  }
}

struct List {
  const Call* calls;
  int64_t count;
};

void make_calls(const void* words) {
  const List& list = *static_cast<const List*>(words);
  for (int64_t i = 0; i < list.count; ++i) list.calls[i].function(list.calls[i].words);
}

}  // namespace

// `by_team`: every kernel among the calls knows teams, see team.h.
extern "C" __attribute__((visibility("default"))) void hf_run(const Call* calls, int64_t count, int64_t rows, int64_t by_team) {
  const bool many = rows >= MANY_ROWS && rows >= LEAST * threads();
  if (by_team && !many) {
    for (int64_t i = 0; i < count; ++i) set_rows(calls[i], rows);
    const List list{calls, count};
    return with_team(threads(), make_calls, &list);
  }
  for (int64_t i = 0; i < count;) {
    int64_t end = i;
    while (many && end < count && calls[end].per_row) ++end;
    if (end > i) {
      run_blocks(calls + i, end - i, rows);
      i = end;
    } else {
      set_rows(calls[i], rows);
      calls[i].function(calls[i].words);
      ++i;
    }
  }
}
