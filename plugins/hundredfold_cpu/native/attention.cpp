// Paged attention over a flat batch: keys and values are written, then every query attends, in one call.
//
// Keys lie as [block][kv head][16 keys together][head_dim][16], so that a vector scores 16 keys without sums across
// lanes; values as [block][kv head][16 columns together][key][16], the last columns padded. Both are read as they lie:
// what a block holds for a head in few long runs, which is what memory is fast at. All arithmetic is float32.
//
// A query's bits depend on its own sequence alone. A score is one chain of fused multiply-adds over the columns; weights
// are e^(score - largest) and their sum adds keys that are equal modulo 16, then the sixteen lanes; an output column is
// one chain over the keys. How many queries are computed together, and by which thread, changes none of these.
#include "vec_math.h"
#include "words.h"

#ifdef _OPENMP
#include <omp.h>
#endif

// Structures that attention.py fills in; all integers are 64 bits wide.
struct Tile {
  int64_t row, first, count, position, writes;  // queries: flat index, how many, position in the sequence
};

struct Piece {
  int64_t first, count;  // tokens whose keys and values are written before anything is read
};

struct Step {
  const Tile* tiles;
  int64_t num_tiles;
  const Piece* pieces;
  int64_t num_pieces;
  const int32_t* tables;
  int64_t table_stride;
  const int64_t* slots;
  float* scratch;  // `scratch_stride` floats for each thread
  int64_t scratch_stride;
  int64_t num_threads;
};

struct Layer {
  void *keys, *values;
  const float* sinks;
  int64_t num_heads, num_kv_heads, head_dim, block_size;
  int64_t window;         // tokens that a query sees, its own included
  double scale, softcap;  // softcap 0 for none
};

namespace HF_ISA {

constexpr int WIDE = HF_ISA_NUMBER == HF_AVX512 ? 2 : 1;  // twice the registers

// How many tiles or panels are worked on side by side below: few, though registers would take more. Memory is the
// limit of a decode step, and it gives most when it is read in one long run.

static inline int64_t up(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

// One call's arguments, typed: activations T, cache C.
template <class T, class C>
struct Call {
  const Step& step;
  const Layer& layer;
  const T *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  T* out;

  int64_t group() const { return layer.num_heads / layer.num_kv_heads; }
  int64_t key_block() const { return layer.block_size * layer.head_dim; }
  int64_t value_block() const { return layer.block_size * up(layer.head_dim); }
  C* keys(int64_t block, int64_t head) const {
    return static_cast<C*>(layer.keys) + (block * layer.num_kv_heads + head) * key_block();
  }
  C* values(int64_t block, int64_t head) const {
    return static_cast<C*>(layer.values) + (block * layer.num_kv_heads + head) * value_block();
  }
};

template <class T, class C>
static void write(const Call<T, C>& call, int64_t token, int64_t head) {
  const int64_t dim = call.layer.head_dim, slot = call.step.slots[token];
  const int64_t block = slot / call.layer.block_size, offset = slot % call.layer.block_size;
  C* key = call.keys(block, head) + offset / LANES * dim * LANES + offset % LANES;
  C* value = call.values(block, head) + offset * LANES;
  const T *k = call.k + token * call.k_stride + head * dim, *v = call.v + token * call.v_stride + head * dim;
  for (int64_t d = 0; d < dim; d += LANES) {
    C column[LANES];
    put(column, get_part(k + d, dim - d));
    for (int64_t i = 0; i < LANES && d + i < dim; ++i) key[(d + i) * LANES] = column[i];
    put(value + d * call.layer.block_size, get_part(v + d, dim - d));
  }
}

// Scores of R queries (rows of `q`) against C times 16 keys.
template <int R, int N, class C>
static inline void score(const float* q, int64_t dim, const C* const* keys, float* scores, int64_t stride) {
  Vec sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sums[r][n] = zero();
  for (int64_t d = 0; d < dim; ++d) {
    Vec key[N];
    for (int n = 0; n < N; ++n) key[n] = get(keys[n] + d * LANES);
    for (int r = 0; r < R; ++r) {
      const Vec x = broadcast(q[r * dim + d]);
      for (int n = 0; n < N; ++n) sums[r][n] = fma(x, key[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(scores + r * stride + n * LANES, sums[r][n]);
}

template <int R, int N, class C>
static void score_tiles(const float* q, int64_t dim, const C* const* keys, int64_t tiles, float* scores,
                        int64_t stride) {
  int64_t tile = 0;
  for (; tile + N <= tiles; tile += N) score<R, N>(q, dim, keys + tile, scores + tile * LANES, stride);
  for (; tile < tiles; ++tile) score<R, 1>(q, dim, keys + tile, scores + tile * LANES, stride);
}

template <class C>
static void score_rows(int64_t rows, const float* q, int64_t dim, const C* const* keys, int64_t tiles, float* scores,
                       int64_t stride) {
  for (int64_t done = 0; done < rows;) {
    const float* from = q + done * dim;
    float* to = scores + done * stride;
    const int64_t left = rows - done;
    if (left >= 6) {
      score_tiles<6, WIDE>(from, dim, keys, tiles, to, stride), done += 6;
    } else if (left >= 4) {
      score_tiles<4, WIDE>(from, dim, keys, tiles, to, stride), done += 4;
    } else if (left == 3) {
      score_tiles<3, WIDE>(from, dim, keys, tiles, to, stride), done += 3;
    } else if (left == 2) {
      score_tiles<2, 2 * WIDE>(from, dim, keys, tiles, to, stride), done += 2;
    } else {
      score_tiles<1, 4 * WIDE>(from, dim, keys, tiles, to, stride), done += 1;
    }
  }
}

// Adds to N times 16 columns of R rows' `sums` the values of `count` keys of a block, times their weights.
template <int R, int N, class C>
static inline void mix(const float* weights, int64_t weight_stride, const C* values, int64_t panel, int64_t count,
                       float* sums, int64_t width) {
  Vec sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = load(sums + r * width + n * LANES);
  for (int64_t key = 0; key < count; ++key) {
    Vec value[N];
    for (int n = 0; n < N; ++n) value[n] = get(values + n * panel + key * LANES);
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(weights[r * weight_stride + key]);
      for (int n = 0; n < N; ++n) sum[r][n] = fma(weight, value[n], sum[r][n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * width + n * LANES, sum[r][n]);
}

template <int R, int N, class C>
static void mix_columns(const float* weights, int64_t stride, const C* values, int64_t panel, int64_t count, float* sums,
                        int64_t width) {
  int64_t d = 0;
  for (; d + N * LANES <= width; d += N * LANES, values += N * panel)
    mix<R, N>(weights, stride, values, panel, count, sums + d, width);
  for (; d < width; d += LANES, values += panel) mix<R, 1>(weights, stride, values, panel, count, sums + d, width);
}

template <class C>
static void mix_rows(int64_t rows, const float* weights, int64_t stride, const C* values, int64_t panel, int64_t count,
                     float* sums, int64_t width) {
  for (int64_t done = 0; done < rows;) {
    const float* from = weights + done * stride;
    float* to = sums + done * width;
    const int64_t left = rows - done;
    if (left >= 6) {
      mix_columns<6, WIDE>(from, stride, values, panel, count, to, width), done += 6;
    } else if (left >= 4) {
      mix_columns<4, WIDE>(from, stride, values, panel, count, to, width), done += 4;
    } else if (left == 3) {
      mix_columns<3, WIDE>(from, stride, values, panel, count, to, width), done += 3;
    } else if (left == 2) {
      mix_columns<2, WIDE>(from, stride, values, panel, count, to, width), done += 2;
    } else {
      mix_columns<1, 2 * WIDE>(from, stride, values, panel, count, to, width), done += 1;
    }
  }
}

// Scores begin to end of a row to weights that still lack the division by their sum, which is returned.
// `scores` lies at a multiple of 16 keys; what is outside of begin to end may be anything.
static float soften(float* scores, int64_t begin, int64_t end, double softcap, const float* sink) {
  const int64_t from = begin / LANES * LANES, to = up(end);
  if (softcap != 0) {
    const Vec cap = broadcast(float(softcap)), twice = broadcast(float(2 * softcap));
    const Vec factor = broadcast(float(2 / softcap)), minus = negate(cap);
    for (int64_t i = from; i < to; i += LANES)
      store(scores + i, fma(sigmoid(mul(load(scores + i), factor)), twice, minus));  // cap * tanh(score / cap)
  }
  for (int64_t i = from; i < begin; ++i) scores[i] = -__builtin_inff();
  for (int64_t i = end; i < to; ++i) scores[i] = -__builtin_inff();
  Vec most = broadcast(sink ? *sink : -__builtin_inff());
  for (int64_t i = from; i < to; i += LANES) most = max(load(scores + i), most);
  const Vec largest_score = broadcast(largest(most));
  Vec total = zero();
  for (int64_t i = from; i < to; i += LANES) {
    const Vec weight = exp(sub(load(scores + i), largest_score));
    store(scores + i, weight);
    total = add(total, weight);
  }
  float whole = sum(total);
  if (sink) {
    float one[LANES];
    store(one, exp(sub(broadcast(*sink), largest_score)));
    whole += one[0];
  }
  return whole;
}

template <class T, class C>
static void mix_keys(const Call<T, C>& call, const int32_t* table, int64_t head, int64_t rows, const float* weights,
                     int64_t stride, int64_t origin, int64_t begin, int64_t end, float* sums) {
  const int64_t size = call.layer.block_size, width = up(call.layer.head_dim);
  for (int64_t key = begin; key < end;) {
    const int64_t offset = key % size, run = end - key < size - offset ? end - key : size - offset;
    const C* values = call.values(table[key / size], head) + offset * LANES;
    mix_rows(rows, weights + key - origin, stride, values, size * LANES, run, sums, width);
    key += run;
  }
}

// Every query of a tile with the heads that share one kv head.
template <class T, class C>
static void attend(const Call<T, C>& call, const Tile& tile, int64_t head, float* scratch) {
  const Layer& layer = call.layer;
  const int64_t dim = layer.head_dim, width = up(dim), size = layer.block_size, group = call.group();
  const int64_t rows = tile.count * group, last = tile.position + tile.count - 1;
  const int32_t* table = call.step.tables + tile.row * call.step.table_stride;
  if (tile.writes)
    for (int64_t i = 0; i < tile.count; ++i) write(call, tile.first + i, head);

  float *q = scratch, *sums = q + rows * dim, *scores = sums + rows * width;
  const Vec scale_by = broadcast(float(layer.scale));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = tile.first + row / group, own = head * group + row % group;
    const T* from = call.q + token * call.q_stride + own * dim;
    for (int64_t d = 0; d < dim; d += LANES) put_part(q + row * dim + d, mul(get_part(from + d, dim - d), scale_by), dim - d);
  }
  for (int64_t i = 0; i < rows * width; i += LANES) store(sums + i, zero());

  // the first key that each query sees, and the first of sixteen that any does
  const auto first_key = [&](int64_t position) { return position - layer.window + 1 > 0 ? position - layer.window + 1 : 0; };
  const int64_t origin = first_key(tile.position) / LANES * LANES;
  const int64_t tiles = (last - origin) / LANES + 1, stride = tiles * LANES;
  constexpr int64_t AT_ONCE = 4 * WIDE;
  for (int64_t t = 0; t < tiles; t += AT_ONCE) {
    const C* keys[AT_ONCE];
    const int64_t count = tiles - t < AT_ONCE ? tiles - t : AT_ONCE;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t key = origin + (t + n) * LANES;
      keys[n] = call.keys(table[key / size], head) + key % size * dim;
    }
    score_rows(rows, q, dim, keys, count, scores + t * LANES, stride);
  }

  float* totals = scores + rows * stride;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = tile.position + row / group;
    const float* sink = layer.sinks ? layer.sinks + head * group + row % group : nullptr;
    totals[row] = soften(scores + row * stride, first_key(position) - origin, position + 1 - origin, layer.softcap, sink);
  }

  // keys that all queries of the tile see, and before and after them each query's own
  const int64_t shared_begin = first_key(last), shared_end = tile.position + 1;
  const bool shared = shared_begin < shared_end;
  const auto own = [&](int64_t i, int64_t begin, int64_t end) {
    mix_keys(call, table, head, group, scores + i * group * stride, stride, origin, begin, end, sums + i * group * width);
  };
  for (int64_t i = 0; i < tile.count; ++i)
    own(i, first_key(tile.position + i), shared ? shared_begin : tile.position + i + 1);
  if (shared) {
    mix_keys(call, table, head, rows, scores, stride, origin, shared_begin, shared_end, sums);
    for (int64_t i = 1; i < tile.count; ++i) own(i, shared_end, tile.position + i + 1);
  }

  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = tile.first + row / group, column = (head * group + row % group) * dim;
    T* to = call.out + token * layer.num_heads * dim + column;
    const Vec share = broadcast(1.0f / totals[row]);
    for (int64_t d = 0; d < dim; d += LANES) put_part(to + d, mul(load(sums + row * width + d), share), dim - d);
  }
}

template <class T, class C>
static void run(const Call<T, C>& call) {
  const Step& step = call.step;
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
      for (int64_t item = 0; item < step.num_pieces * heads; ++item) {
        const Piece& piece = step.pieces[item / heads];
        for (int64_t i = 0; i < piece.count; ++i) write(call, piece.first + i, item % heads);
      }
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t item = 0; item < step.num_tiles * heads; ++item)
      attend(call, step.tiles[item / heads], item % heads, scratch);
  }
}

}  // namespace HF_ISA

// `q`, `k` and `v` are [tokens, heads, head_dim] with free strides between tokens, `out` is contiguous.
#define HF_ATTENTION(T, t, C, c)                                                                                      \
  HF_EXPORT(attention_##t##_##c)(const Step* step, const Layer* layer, const T* q, int64_t q_stride, const T* k,      \
                                 int64_t k_stride, const T* v, int64_t v_stride, T* out) {                            \
    HF_ISA::run(HF_ISA::Call<T, C>{*step, *layer, q, k, v, q_stride, k_stride, v_stride, out});                       \
  }                                                                                                                   \
  HF_WORDS(attention_##t##_##c)

HF_ATTENTION(float, f32, float, f32)
HF_ATTENTION(float, f32, uint16_t, bf16)
HF_ATTENTION(uint16_t, bf16, float, f32)
HF_ATTENTION(uint16_t, bf16, uint16_t, bf16)
