// Paged attention over a flat batch: keys and values are written, then every query attends, in one call.
//
// A query takes its keys in runs that begin at multiples of 512 in its sequence. Of each run come the largest score, the
// sum of weights e^(score - largest) and the weighted sum of values; runs are joined in their order. Sums over keys of a
// run add those that are equal modulo 16, then the sixteen lanes. So a query's bits depend on its own sequence alone:
// not on what is computed beside it, by which thread, nor on whether one thread takes all runs of a long sequence.
#include "choice.h"
#include "nibbles.h"
#include "team.h"
#include "words.h"
#include "workspace.h"

#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace HF_ISA {

// One call's arguments, typed: activations T, encoding E.
template <class T, class E>
struct Call {
  const Step& step;
  const Layer& layer;
  Paged<E> paged;
  const T *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  T* out;

  int64_t group() const { return layer.num_heads / layer.num_kv_heads; }
  int64_t first_key(int64_t position) const {  // that a query sees
    return position - layer.window + 1 > 0 ? position - layer.window + 1 : 0;
  }
  const int32_t* table(const Tile& tile) const { return step.tables + tile.row * step.table_stride; }
  // Where the keys of a run are that a tile sees; runs are counted from the sequence's start.
  void find(const Tile& tile, const int32_t* table, int64_t head, int64_t index, Run<E>& run) const {
    const int64_t first = first_key(tile.position), last = tile.position + tile.count;
    const int64_t from = index * RUN, to = from + RUN;
    run.find(paged, table, head, first > from ? first : from, last < to ? last : to);
  }
  void write(int64_t token, int64_t head) const {
    const int64_t own = head * layer.head_dim;
    write_token(paged, step.slots[token], head, k + token * k_stride + own, v + token * v_stride + own);
    if (layer.sketches) sketch_token(Sketches(layer), step.slots[token], head, k + token * k_stride + own, layer.head_dim);
  }
};

// The tile's queries, scaled, in the type that they are multiplied in.
template <class T, class E>
static void take_queries(const Call<T, E>& call, const Tile& tile, int64_t head, const Room<E>& room) {
  const int64_t dim = call.layer.head_dim, group = call.group(), columns = 2 * call.paged.key_units;
  const Vec scale_by = broadcast(float(call.layer.scale));
  for (int64_t row = 0; row < room.rows; ++row) {
    const T* from = call.q + (tile.first + row / group) * call.q_stride + (head * group + row % group) * dim;
    typename Query<E>::Type* to = room.q + row * columns;  // whole vectors are written: the next row comes after
    float wide[MOST_DIM];
    for (int64_t d = 0; d < columns; d += LANES) store(wide + d, mul(get_part(from + d, dim - d), scale_by));
    if constexpr (E::INTEGERS) {
      room.q_factors[row] = to_int16(wide, up(columns, LANES), top_of(wide, up(columns, LANES)), to);
    } else {
      room.q_factors[row] = 1.0f;
      for (int64_t d = 0; d < columns; d += LANES) store(to + d, load(wide + d));
    }
    if constexpr (NIBBLES<E>) sum_bands(to, columns, Bands(room, call.paged).sums(row));
  }
}

// A tile's run for one kv head, or nothing.
struct Place {
  const Tile* tile;
  int64_t head, run;

  bool operator==(const Place& other) const { return tile == other.tile && head == other.head && run == other.run; }
};

// A thread's memory to work in, the run that it computes, and the one that it most likely computes next: that is asked for
// meanwhile.
template <class E>
struct Thread {
  float* scratch;
  Place ahead{nullptr, 0, 0};
  Run<E> runs[2];
  Run<E>*now = runs, *next = runs + 1;

  explicit Thread(float* scratch) : scratch(scratch) {}
};

// What the queries see of a run of keys: `most`, `total` and `part` of each row.
template <class T, class E>
static void compute_run(const Call<T, E>& call, const Tile& tile, const Run<E>& run, Run<E>& next, const Room<E>& room) {
  const int64_t units = call.paged.key_units, group = call.group(), key_bytes = call.paged.sixteen_keys();
  const int64_t value_bytes = LANES * LANES / call.paged.PACKED * int64_t(sizeof(typename E::Code));
  if constexpr (BYTES<E>) {
    constexpr int64_t TOGETHER = 8;  // sixteens of keys that stay in the first-level cache for all rows
    for (int64_t g = 0; g < run.groups; g += TOGETHER) {
      const int64_t stop = g + TOGETHER < run.groups ? g + TOGETHER : run.groups;
      by_rows(room.rows, [&](auto taken, int64_t row) {
        score_all<decltype(taken)::COUNT>(room.q + row * 2 * units, units, run, next, g, stop, room.scores + row * RUN);
      });
    }
    for (int64_t g = run.groups; g < next.groups; ++g) {  // the others are asked for between products
      fetch_early(next.keys[g], key_bytes);
      for (int64_t panel = 0; panel < call.paged.panels; ++panel) fetch_early(next.values[g] + panel * next.panel, value_bytes);
    }
    next.asked_for = next.groups > 0;
  } else {
    for (int64_t g = 0; g < run.groups; ++g) {
      if (g + 2 < run.groups) fetch(run.keys[g + 2], key_bytes);
      for (int64_t panel = 0; panel < call.paged.panels; ++panel) fetch(run.values[g] + panel * run.panel, value_bytes);
      by_rows(room.rows, [&](auto taken, int64_t row) {
        float* scores = room.scores + row * RUN + g * LANES;
        if constexpr (NIBBLES<E>)
          score_bands<decltype(taken)::COUNT>(room, call.paged, row, run.keys[g], run.key_scales[g], scores);
        else
          score<E, decltype(taken)::COUNT>(room.q + row * 2 * units, units, run.keys[g], scores, RUN);
      });
    }
  }
  const auto seen = [&](int64_t query, int64_t& first, int64_t& last) {  // counted from the run's base
    const int64_t position = tile.position + query, own = call.first_key(position);
    first = (own > run.begin ? own : run.begin) - run.base;
    last = (position + 1 < run.end ? position + 1 : run.end) - run.base;
    return first < last;
  };
  for (int64_t query = 0; query < tile.count; ++query) {
    int64_t first, last, row = query * group;
    const int64_t end_row = row + group;
    if (seen(query, first, last)) {
      for (; end_row - row >= 3; row += 3) soften<3>(run, next, room, row, first, last, call.layer.softcap);
      for (; row < end_row; ++row) soften<1>(run, next, room, row, first, last, call.layer.softcap);
    }
    for (; row < end_row; ++row) leave_out(run, room, row);
  }
  sum_values(run, next, call.paged, room, tile.count, seen);
}

template <class T, class E>
static void begin_rows(const Call<T, E>& call, int64_t head, const Room<E>& room) {
  const int64_t group = call.group();
  for (int64_t row = 0; row < room.rows; ++row)
    begin_row(room, row, call.layer.sinks ? call.layer.sinks + head * group + row % group : nullptr);
}

template <class T, class E>
static void put_out(const Call<T, E>& call, const Tile& tile, int64_t head, const Room<E>& room) {
  const int64_t dim = call.layer.head_dim, group = call.group();
  for (int64_t row = 0; row < room.rows; ++row) {
    const int64_t token = tile.first + row / group, column = (head * group + row % group) * dim;
    T* to = call.out + token * call.layer.num_heads * dim + column;
    const Vec share = broadcast(1.0f / room.all_total[row]);
    for (int64_t d = 0; d < dim; d += LANES) put_part(to + d, mul(load(room.whole + row * room.width + d), share), dim - d);
  }
}

// Where a tile's results of one run and head lie: of each row the largest score, the sum of weights, the values.
template <class T, class E>
static float* part_of(const Call<T, E>& call, const Tile& tile, int64_t head, int64_t run, int64_t row, const Room<E>& room) {
  const int64_t first_run = call.first_key(tile.position) / RUN;
  const int64_t index = ((run - first_run) * call.layer.num_kv_heads + head) * room.rows + row;
  return call.step.parts + tile.parts + index * (room.width + 2);
}

// The blocks that a tile of one query attends to, in a table of their own, and the tile as if there were no others.
template <class T, class E>
static const int32_t* choose(const Call<T, E>& call, Tile& tile, int64_t head, float* scratch) {
  const Step& step = call.step;
  const Layer& layer = call.layer;
  const Sketches sketches(layer);
  const int64_t rows = call.group(), blocks = tile.position / call.paged.size + 1;
  const ChoiceRoom room(scratch + step.scratch_stride - step.choice_room, rows, sketches, blocks);
  const T* q = call.q + tile.first * call.q_stride + head * rows * layer.head_dim;
  code_queries(q, layer.head_dim, float(layer.scale), layer.softcap, sketches, room);
  const Choice choice{tile.blocks, step.first_blocks, step.last_blocks, step.left_out};
  const int64_t kept = choose_blocks(choice, sketches, call.table(tile), tile.position, head, layer.softcap,
                                     layer.sinks ? layer.sinks + head * rows : nullptr, room);
  tile.position -= (blocks - kept) * call.paged.size;
  return room.chosen;
}

// The queries of a tile with the heads that share one kv head: all runs, or one of them. `after` is what most likely
// comes next.
template <class T, class E>
static void attend(const Call<T, E>& call, const Tile& whole, int64_t head, int64_t only, Thread<E>& thread,
                   const Place& after) {
  Tile tile = whole;
  const Room<E> room(thread.scratch, tile.count * call.group(), call.paged.panels * LANES);
  const int32_t* table = tile.blocks ? choose(call, tile, head, thread.scratch) : call.table(tile);
  const int64_t first = call.first_key(tile.position), end = tile.position + tile.count;
  const auto look = [&](int64_t run) {  // what is computed now, and what comes then
    if (!(thread.ahead == Place{&whole, head, run})) {
      call.find(tile, table, head, run, *thread.now);
      thread.now->expect_scales();
    }
    const bool last = only >= 0 || (run + 1) * RUN >= end;
    thread.ahead = last ? after : Place{&whole, head, run + 1};
    if (!last)
      call.find(tile, table, head, run + 1, *thread.next);
    else if (after.tile)
      call.find(*after.tile, call.table(*after.tile), after.head, after.run, *thread.next);
    else
      thread.next->groups = 0;
    thread.next->expect_scales();
  };
  const auto compute = [&] {
    compute_run(call, tile, *thread.now, *thread.next, room);
    Run<E>* done = thread.now;
    thread.now = thread.next, thread.next = done;
  };
  look(only >= 0 ? only : first / RUN);
  take_queries(call, tile, head, room);
  if (only >= 0) {
    compute();
    for (int64_t row = 0; row < room.rows; ++row) {
      float* to = part_of(call, tile, head, only, row, room);
      to[0] = room.most[row], to[1] = room.total[row];
      for (int64_t d = 0; d < room.width; d += LANES) store(to + 2 + d, load(room.part + row * room.width + d));
    }
    return;
  }
  begin_rows(call, head, room);
  for (int64_t run = first / RUN; run * RUN < end; ++run) {
    if (run > first / RUN) look(run);
    compute();
    for (int64_t row = 0; row < room.rows; ++row)
      join(room, row, room.most[row], room.total[row], room.part + row * room.width);
  }
  put_out(call, tile, head, room);
}

// What single runs of a tile gave, joined as above.
template <class T, class E>
static void join_runs(const Call<T, E>& call, const Tile& tile, int64_t head, float* scratch) {
  const Room<E> room(scratch, tile.count * call.group(), call.paged.panels * LANES);
  begin_rows(call, head, room);
  for (int64_t run = call.first_key(tile.position) / RUN; run * RUN < tile.position + tile.count; ++run)
    for (int64_t row = 0; row < room.rows; ++row) {
      const float* part = part_of(call, tile, head, run, row, room);
      join(room, row, part[0], part[1], part + 2);
    }
  put_out(call, tile, head, room);
}

template <class T, class E>
static void write_piece(const Call<T, E>& call, int64_t index) {
  const int64_t heads = call.layer.num_kv_heads;
  const Piece& piece = call.step.pieces[index / heads];
  for (int64_t token = piece.first; token < piece.first + piece.count; ++token) call.write(token, index % heads);
}

// Where an item begins, if it is known yet.
template <class T, class E>
static Place place_of(const Call<T, E>& call, const Item& item, int64_t head) {
  const Tile& tile = call.step.tiles[item.tile];
  if (tile.blocks) return {nullptr, 0, 0};  // its blocks are not chosen yet
  return {&tile, head, item.run >= 0 ? item.run : call.first_key(tile.position) / RUN};
}

// What the queries of an item bring along.
template <class T, class E>
static void write_item(const Call<T, E>& call, int64_t index) {
  const Item& item = call.step.items[index];
  const Tile& tile = call.step.tiles[item.tile];
  if (!tile.writes) return;
  for (int64_t head = item.head; head < item.head + item.heads; ++head)
    for (int64_t i = 0; i < tile.count; ++i) call.write(tile.first + i, head);
}

// `later` is most likely this thread's next item.
template <class T, class E>
static void attend_item(const Call<T, E>& call, int64_t index, int64_t later, Thread<E>& thread) {
  const Step& step = call.step;
  const Item& item = step.items[index];
  const int64_t end = item.head + item.heads;
  for (int64_t head = item.head; head < end; ++head) {
    Place after{nullptr, 0, 0};
    if (head + 1 < end)
      after = place_of(call, item, head + 1);
    else if (later < step.num_items)
      after = place_of(call, step.items[later], step.items[later].head);
    attend(call, step.tiles[item.tile], head, item.run, thread, after);
  }
}

template <class T, class E>
static void join_item(const Call<T, E>& call, int64_t index, float* scratch) {
  const Item& item = call.step.joins[index];
  join_runs(call, call.step.tiles[item.tile], item.head, scratch);
}

// Items next to each other as a part: what comes of them is put in place together.
template <class T, class E>
static void attend_by_team(const Call<T, E>& call, float* scratch) {
  const Step& step = call.step;
  const int64_t width = call.layer.num_heads * call.layer.head_dim;
  int64_t most = 1;  // tokens of an item
  for (int64_t i = 0; i < step.num_items; ++i)
    if (const int64_t count = step.tiles[step.items[i].tile].count; count > most) most = count;
  Thread<E> thread(scratch);
  const auto compute = [&](int64_t first, int64_t last, void* room) {
    T* out = static_cast<T*>(room);
    for (int64_t i = first; i < last; ++i, out += most * width) {
      Call<T, E> own = call;
      own.out = out - step.tiles[step.items[i].tile].first * width;
      attend_item(own, i, i + 1, thread);
    }
  };
  const auto put = [&](int64_t first, int64_t last, void* room) {
    const int64_t group = width / call.layer.num_kv_heads;
    const T* out = static_cast<const T*>(room);
    for (int64_t i = first; i < last; ++i, out += most * width) {
      const Item& item = step.items[i];
      const Tile& tile = step.tiles[item.tile];
      for (int64_t token = 0; token < tile.count; ++token)
        std::memcpy(call.out + (tile.first + token) * width + item.head * group, out + token * width + item.head * group,
                    size_t(item.heads * group) * sizeof(T));
    }
  };
  by_team(step.num_items, 1, size_t(most * width) * sizeof(T), compute, put);
}

template <class T, class E>
static void run_by_team(const Call<T, E>& call) {
  const Step& step = call.step;
  // Not the step's, which is for as many threads as there were when it was prepared.
  float* scratch = static_cast<float*>(workspace(Workspace::SCRATCH, size_t(step.scratch_stride) * sizeof(float)));
  if (step.num_pieces) {
    by_team(step.num_pieces * call.layer.num_kv_heads, 1, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) write_piece(call, first);
    });
  }
  constexpr int64_t WRITES = 4;
  by_team(step.num_items, WRITES, [&](int64_t first, int64_t last) {
    for (; first < last; ++first) write_item(call, first);
  });
  if (!step.num_joins) return attend_by_team(call, scratch);
  // Results of single runs lie where whoever joins them finds them.
  by_team(step.num_items, 1, [&](int64_t first, int64_t last) {
    Thread<E> thread(scratch);
    for (; first < last; ++first) attend_item(call, first, step.num_items, thread);
  });
  by_team(step.num_joins, 1, [&](int64_t first, int64_t last) {
    for (; first < last; ++first) join_item(call, first, scratch);
  });
}

template <class T, class E>
static void run(const Call<T, E>& call) {
  const Step& step = call.step;
  if (in_team()) return run_by_team(call);
  const int64_t heads = call.layer.num_kv_heads;
#pragma omp parallel num_threads(int(step.num_threads)) if (step.num_threads > 1)
  {
#ifdef _OPENMP
    float* scratch = step.scratch + omp_get_thread_num() * step.scratch_stride;
#else
    float* scratch = step.scratch;
#endif
    Thread<E> thread(scratch);
    if (step.num_pieces) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < step.num_pieces * heads; ++i) write_piece(call, i);
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < step.num_items; ++i) {
      write_item(call, i);
      attend_item(call, i, i + step.num_threads, thread);
    }
    if (step.num_joins) {
#pragma omp barrier
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < step.num_joins; ++i) join_item(call, i, scratch);
    }
  }
}

}  // namespace HF_ISA

// `q`, `k` and `v` are [tokens, heads, head_dim] with free strides between tokens, `out` is contiguous.
#define HF_ATTENTION(T, t, E, e)                                                                                  \
  HF_EXPORT(attention_##t##_##e)(const Step* step, const Layer* layer, const T* q, int64_t q_stride,              \
                                 const T* k, int64_t k_stride, const T* v, int64_t v_stride, T* out) {            \
    using namespace HF_ISA;                                                                                       \
    run(Call<T, E>{*step, *layer, Paged<E>(*layer), q, k, v, q_stride, k_stride, v_stride, out});                 \
  }                                                                                                               \
  HF_WORDS(attention_##t##_##e)

HF_ATTENTION(float, f32, Fp32, fp32)
HF_ATTENTION(float, f32, Bf16, bf16)
HF_ATTENTION(float, f32, Int8, int8)
HF_ATTENTION(float, f32, Fp8, fp8)
HF_ATTENTION(float, f32, Fp8E5m2, fp8_e5m2)
HF_ATTENTION(float, f32, Int4, int4)
HF_ATTENTION(uint16_t, bf16, Fp32, fp32)
HF_ATTENTION(uint16_t, bf16, Bf16, bf16)
HF_ATTENTION(uint16_t, bf16, Int8, int8)
HF_ATTENTION(uint16_t, bf16, Fp8, fp8)
HF_ATTENTION(uint16_t, bf16, Fp8E5m2, fp8_e5m2)
HF_ATTENTION(uint16_t, bf16, Int4, int4)
