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
  int64_t key_bytes() const {  // of sixteen keys
    return paged.key_units * UNIT / paged.PACKED * int64_t(sizeof(typename E::Code));
  }
  const int32_t* table(const Tile& tile) const { return step.tables + tile.row * step.table_stride; }
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
    float wide[MOST_DIM];
    int16_t codes[MOST_DIM];
    for (int64_t d = 0; d < columns; d += LANES) store(wide + d, mul(get_part(from + d, dim - d), scale_by));
    if constexpr (E::INTEGERS)
      room.q_factors[row] = to_int16(wide, up(columns, LANES), codes);
    else
      room.q_factors[row] = 1.0f;
    if constexpr (NIBBLES<E>) sum_bands(codes, columns, Bands(room, call.paged).sums(row));
    for (int64_t d = 0; d < columns; ++d) {
      if constexpr (E::INTEGERS)
        room.q[row * columns + d] = codes[d];
      else
        room.q[row * columns + d] = wide[d];
    }
  }
}

// The keys that a thread needs next, asked for line by line while it weighs the values of those it has: memory is idle
// then. Many lines at once would hold up the loads of the work that they hide behind.
template <class T, class E>
struct Ahead {
  static constexpr int64_t MOST = 16;  // groups; a longer run asks for the others itself
  int64_t groups = 0, next = 0, left = 0, lines = 0;
  const char* at = nullptr;
  const typename E::Code* keys[MOST];

  void look(const Call<T, E>& call, const Tile& tile, int64_t head, int64_t only) {
    if (tile.blocks) return;  // its blocks are not chosen yet
    const int64_t first = call.first_key(tile.position), run = only >= 0 ? only : first / RUN;
    const int64_t begin = first > run * RUN ? first : run * RUN, end = tile.position + tile.count;
    Run<E> run_ahead;
    run_ahead.find(call.paged, call.table(tile), head, begin, end < begin + MOST * LANES ? end : begin + MOST * LANES);
    groups = run_ahead.groups < MOST ? run_ahead.groups : MOST, lines = (call.key_bytes() + 63) / 64;
    for (int64_t g = 0; g < groups; ++g) keys[g] = run_ahead.keys[g];
  }
  void operator()() {
    if (left == 0) {
      if (next == groups) return;
      at = reinterpret_cast<const char*>(keys[next++]), left = lines;
    }
    expect_read(at);
    at += 64, --left;
  }
};

// What the queries see of keys begin to end, which lie in one run: `most`, `total` and `part` of each row.
template <class T, class E>
static void compute_run(const Call<T, E>& call, const Tile& tile, const int32_t* table, int64_t head, int64_t begin,
                        int64_t end, const Room<E>& room, Ahead<T, E>& ahead) {
  const int64_t units = call.paged.key_units, group = call.group(), key_bytes = call.key_bytes();
  const int64_t value_bytes = LANES * LANES / call.paged.PACKED * int64_t(sizeof(typename E::Code));
  Run<E> run;
  run.find(call.paged, table, head, begin, end);
  for (int64_t g = 0; g < run.groups; ++g) {
    if (g + 2 < run.groups) fetch(run.keys[g + 2], key_bytes);
    if constexpr (E::SCALED) expect_read(run.key_scales[g]), expect_read(run.value_scales[g]);
    constexpr bool SPREAD = E::INTEGERS && !NIBBLES<E>;  // `score` asks for values between its products
    if constexpr (!SPREAD)
      for (int64_t panel = 0; panel < call.paged.panels; ++panel) fetch(run.values[g] + panel * run.panel, value_bytes);
    by_rows(room.rows, [&](auto taken, int64_t row) {
      float* scores = room.scores + row * RUN + g * LANES;
      if constexpr (NIBBLES<E>)
        score_bands<decltype(taken)::COUNT>(room, call.paged, row, run.keys[g], run.key_scales[g], scores);
      else
        score<E, decltype(taken)::COUNT>(room.q + row * 2 * units, units, run.keys[g], run.values[g], run.panel, scores, RUN);
    });
  }
  const auto seen = [&](int64_t query, int64_t& first, int64_t& last) {  // counted from the run's base
    const int64_t position = tile.position + query, own = call.first_key(position);
    first = (own > begin ? own : begin) - run.base, last = (position + 1 < end ? position + 1 : end) - run.base;
    return first < last;
  };
  for (int64_t row = 0; row < room.rows; ++row) {
    int64_t first, last;
    if (seen(row / group, first, last))
      soften(run, room, row, first, last, call.layer.softcap);
    else
      leave_out(run, room, row);
  }
  sum_values(run, call.paged, room, tile.count, seen, ahead);
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

// The queries of a tile with the heads that share one kv head: all runs, or one of them.
template <class T, class E>
static void attend(const Call<T, E>& call, const Tile& whole, int64_t head, int64_t only, float* scratch,
                   Ahead<T, E>& ahead) {
  Tile tile = whole;
  const Room<E> room(scratch, tile.count * call.group(), call.paged.panels * LANES);
  if (tile.writes)
    for (int64_t i = 0; i < tile.count; ++i) call.write(tile.first + i, head);
  take_queries(call, tile, head, room);
  const int32_t* table = tile.blocks ? choose(call, tile, head, scratch) : call.table(tile);
  const int64_t first = call.first_key(tile.position), end = tile.position + tile.count;
  const auto compute = [&](int64_t run) {
    const int64_t from = run * RUN, to = from + RUN;
    compute_run(call, tile, table, head, first > from ? first : from, end < to ? end : to, room, ahead);
  };
  if (only >= 0) {
    compute(only);
    for (int64_t row = 0; row < room.rows; ++row) {
      float* to = part_of(call, tile, head, only, row, room);
      to[0] = room.most[row], to[1] = room.total[row];
      for (int64_t d = 0; d < room.width; d += LANES) store(to + 2 + d, load(room.part + row * room.width + d));
    }
    return;
  }
  begin_rows(call, head, room);
  for (int64_t run = first / RUN; run * RUN < end; ++run) {
    compute(run);
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

template <class T, class E>
static void attend_item(const Call<T, E>& call, int64_t index, float* scratch) {
  const Step& step = call.step;
  const Item& item = step.items[index];
  const int64_t after = index + step.num_threads, end = item.head + item.heads;  // most likely this thread's next item
  for (int64_t head = item.head; head < end; ++head) {
    Ahead<T, E> ahead;
    if (head + 1 < end)
      ahead.look(call, step.tiles[item.tile], head + 1, item.run);
    else if (after < step.num_items)
      ahead.look(call, step.tiles[step.items[after].tile], step.items[after].head, step.items[after].run);
    attend(call, step.tiles[item.tile], head, item.run, scratch, ahead);
  }
}

template <class T, class E>
static void join_item(const Call<T, E>& call, int64_t index, float* scratch) {
  const Item& item = call.step.joins[index];
  join_runs(call, call.step.tiles[item.tile], item.head, scratch);
}

// One after the other by a team: f(index, scratch) for each index below `count`.
template <class F>
static void each_by_team(const Step& step, int64_t count, const F& f) {
  struct Context {
    const Step* step;
    const F* f;
    int64_t count, parts;
  };
  const int64_t parts = count < Job::MOST_PARTS ? count : Job::MOST_PARTS;
  if (!parts) return;
  Job job = Job::of(parts, Context{&step, &f, count, parts});
  job.compute = [](const void* context, int64_t part, int64_t thread, void*) {
    const Context& own = *static_cast<const Context*>(context);
    float* scratch = own.step->scratch + thread * own.step->scratch_stride;
    for (int64_t i = part; i < own.count; i += own.parts) (*own.f)(i, scratch);
  };
  run_by_team(job);
}

template <class T, class E>
static void run_in_team(const Call<T, E>& call) {
  const Step& step = call.step;
  each_by_team(step, step.num_pieces * call.layer.num_kv_heads, [&](int64_t i, float*) { write_piece(call, i); });
  each_by_team(step, step.num_items, [&](int64_t i, float* scratch) { attend_item(call, i, scratch); });
  each_by_team(step, step.num_joins, [&](int64_t i, float* scratch) { join_item(call, i, scratch); });
}

template <class T, class E>
static void run(const Call<T, E>& call) {
  const Step& step = call.step;
  if (leads_team()) return run_in_team(call);
  const int64_t heads = call.layer.num_kv_heads;
#pragma omp parallel num_threads(int(step.num_threads)) if (step.num_threads > 1)
  {
#ifdef _OPENMP
    float* scratch = step.scratch + omp_get_thread_num() * step.scratch_stride;
#else
    float* scratch = step.scratch;
#endif
    if (step.num_pieces) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < step.num_pieces * heads; ++i) write_piece(call, i);
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < step.num_items; ++i) attend_item(call, i, scratch);
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
