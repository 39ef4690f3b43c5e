// Picks tokens from rows of logits: the likeliest, or a draw with top_k, top_p and min_p.
//
// Nothing is sorted but what survives: thresholds are looked for by depth below the likeliest token, and in a draw from
// the whole vocabulary only tokens with so little noise that they could win are weighed. Each row is one item.
#include <math.h>

#include "vec_math.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace HF_ISA {

struct Draws {
  const float* logits;
  int64_t stride, count;
  const int64_t *rows, *limits;
  const float *top_values, *temperatures;
  const int64_t* top_ks;
  const double *top_ps, *min_ps;
  const uint32_t *keys, *spread_ids;
};

struct Token {
  float value;
  int32_t id;
};

// Room of a row: survivors, and what is in the race.
struct Row {
  const float* logits;
  int64_t size;
  double top, temperature;
  uint32_t key0, key1;
  const uint32_t* spread_ids;
  Token* tokens;

  double weight(float value) const { return ::exp(double(value - float(top)) / temperature); }
};

constexpr int64_t CHUNK = 512;
constexpr double SLACK = 1e-3;  // by which float32 bounds are widened, in units of log weight; float64 decides
constexpr int64_t LARGE_HEAD = 4096;

static inline uint32_t second_stage(uint32_t x, uint32_t key0, uint32_t key1) {
  x ^= key0;
  x ^= x >> 16;
  x *= 0x21F0AAADu;
  x ^= x >> 15;
  x += key1;
  x *= 0xD35A2D97u;
  return x ^ (x >> 15);
}

static inline bool before(const Token& a, const Token& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// Likeliest first, the lower id first among equals.
static void sort_tokens(Token* tokens, int64_t count) {
  const auto sink = [&](int64_t at, int64_t end) {
    for (int64_t child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && before(tokens[child], tokens[child + 1])) ++child;
      if (!before(tokens[at], tokens[child])) return;
      const Token moved = tokens[at];
      tokens[at] = tokens[child];
      tokens[child] = moved;
    }
  };
  for (int64_t i = count / 2; i-- > 0;) sink(i, count);
  for (int64_t end = count; end-- > 1;) {
    const Token last = tokens[end];
    tokens[end] = tokens[0];
    tokens[0] = last;
    sink(0, end);
  }
}

static int64_t count_from(const Row& row, float least) {
  int64_t count = 0;
  for (int64_t i = 0; i < row.size; i += CHUNK) {
    const int64_t end = i + CHUNK < row.size ? i + CHUNK : row.size;
    int32_t part = 0;
    for (int64_t j = i; j < end; ++j) part += row.logits[j] >= least;
    count += part;
  }
  return count;
}

// Tokens with at least this logit, in the order of ids. Chunks without one are passed over quickly.
static int64_t collect(const Row& row, float least, Token* tokens) {
  int64_t count = 0;
  for (int64_t i = 0; i < row.size; i += CHUNK) {
    const int64_t end = i + CHUNK < row.size ? i + CHUNK : row.size;
    int32_t some = 0;
    for (int64_t j = i; j < end; ++j) some |= row.logits[j] >= least;
    if (!some) continue;
    for (int64_t j = i; j < end; ++j)
      if (row.logits[j] >= least) tokens[count++] = Token{row.logits[j], int32_t(j)};
  }
  return count;
}

// The logit of tokens at most `depth` below the top in log weight, and perhaps a little less.
static float logit_at(const Row& row, double depth) {
  const double cut = row.top - row.temperature * (depth + SLACK) - ::fabs(row.top) * 1e-6;
  return cut > -3.0e38 ? float(cut) : -3.0e38f;
}

// The token with the least noise per weight, and that; starts from what was found before.
static Token race(const Row& row, const Token* tokens, int64_t count, Token winner, double& least) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = second_stage(row.spread_ids[tokens[i].id], row.key0, row.key1);
    const double noise = -::log1p((double(bits) + 0.5) * -0x1p-32);
    const double weight = row.weight(tokens[i].value);
    const double score = weight > 0 ? noise / weight : HUGE_VAL;
    if (winner.id < 0 || score < least || (score == least && before(tokens[i], winner))) {
      least = score;
      winner = tokens[i];
    }
  }
  return winner;
}

// From every token. The head is weighed; of the rest, whose weights are below a bound, only tokens with so few bits
// that they could win: noise is never less than its bits.
static Token race_all(const Row& row) {
  const double depths[] = {8, 4, 2};
  int64_t head = 0;
  double depth = 0;
  for (double tried : depths) {
    depth = tried;
    if ((head = count_from(row, logit_at(row, tried))) <= LARGE_HEAD) break;
  }
  if (head > LARGE_HEAD) depth = 0;
  const float cut = logit_at(row, depth);
  double least = HUGE_VAL;
  Token winner{0, -1};
  winner = race(row, row.tokens, collect(row, cut, row.tokens), winner, least);
  const double bound = least * ::exp(-depth) * (1 + SLACK) * 0x1p32;
  if (bound < 0.5) return winner;
  const uint32_t most = bound < 4294967295.0 ? uint32_t(bound) : 4294967295u;
  int64_t count = 0;
  uint32_t bits[CHUNK];
  for (int64_t i = 0; i < row.size; i += CHUNK) {
    const int64_t size = row.size - i < CHUNK ? row.size - i : CHUNK;
    int32_t some = 0;
    for (int64_t j = 0; j < size; ++j) {
      bits[j] = second_stage(row.spread_ids[i + j], row.key0, row.key1);
      some |= bits[j] <= most;
    }
    if (!some) continue;
    for (int64_t j = 0; j < size; ++j)
      if (bits[j] <= most && row.logits[i + j] < cut) row.tokens[count++] = Token{row.logits[i + j], int32_t(i + j)};
  }
  return race(row, row.tokens, count, winner, least);
}

static int64_t keep_top_k(const Row& row, int64_t top_k) {
  double shallow = 0, deep = 1;
  int64_t count;
  while ((count = count_from(row, logit_at(row, deep))) < top_k && deep < 1e6) shallow = deep, deep *= 2;
  for (int turn = 0; turn < 6 && count > 2 * top_k + 64; ++turn) {  // the fewer, the less there is to sort
    const double middle = (shallow + deep) / 2;
    const int64_t above = count_from(row, logit_at(row, middle));
    if (above < top_k)
      shallow = middle;
    else
      deep = middle, count = above;
  }
  count = collect(row, count < top_k ? -HUGE_VALF : logit_at(row, deep), row.tokens);
  sort_tokens(row.tokens, count);
  return count < top_k ? count : top_k;
}

static double total_weight(const Row& row) {
  const Vec top = broadcast(float(row.top)), temperature = broadcast(float(row.temperature));
  double total = 0;
  for (int64_t i = 0; i < row.size; i += CHUNK) {
    const int64_t end = i + CHUNK < row.size ? i + CHUNK : row.size;
    Vec part = zero();
    int64_t j = i;
    for (; j + LANES <= end; j += LANES)
      part = add(part, exp(div(sub(load(row.logits + j), top), temperature)));
    total += sum(part);
    for (; j < end; ++j) total += row.weight(row.logits[j]);
  }
  return total;
}

// Sorted survivors of top_p among sorted tokens: those before which less than its share of the weight lies.
static int64_t keep_top_p(const Row& row, int64_t count, double share) {
  double sum_before = 0;
  int64_t kept = 0;
  for (; kept < count; ++kept) {
    if (kept && !(sum_before < share)) break;
    sum_before += row.weight(row.tokens[kept].value);
  }
  return kept;
}

static int64_t nucleus(const Row& row, double top_p) {
  const double share = top_p * total_weight(row), depths[] = {4, 8, 16};
  int64_t count = -1;
  for (double depth : depths) {
    count = collect(row, logit_at(row, depth), row.tokens);
    double inside = 0;
    for (int64_t i = 0; i < count; ++i) inside += row.weight(row.tokens[i].value);
    if (inside >= share * (1 + SLACK)) break;
    count = -1;
  }
  if (count < 0) count = collect(row, -HUGE_VALF, row.tokens);
  sort_tokens(row.tokens, count);
  return keep_top_p(row, count, share);
}

static int32_t draw_row(const Row& row, int64_t top_k, double top_p, double min_p) {
  int64_t count;
  if (top_k < row.size) {
    count = keep_top_k(row, top_k);
    if (top_p < 1) {
      double total = 0;
      for (int64_t i = 0; i < count; ++i) total += row.weight(row.tokens[i].value);
      count = keep_top_p(row, count, top_p * total);
    }
  } else if (top_p < 1) {
    count = nucleus(row, top_p);
  } else if (min_p > 0) {
    count = collect(row, logit_at(row, -::log(min_p)), row.tokens);
  } else {
    return race_all(row).id;
  }
  if (min_p > 0) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i)
      if (row.weight(row.tokens[i].value) >= min_p) row.tokens[kept++] = row.tokens[i];
    count = kept;
  }
  double least = HUGE_VAL;
  return race(row, row.tokens, count, Token{0, -1}, least).id;
}

static void draw(const Draws& draws, Token* room, int64_t room_stride, int64_t* drawn) {
#pragma omp parallel for schedule(dynamic, 1) if (draws.count > 1)
  for (int64_t i = 0; i < draws.count; ++i) {
#ifdef _OPENMP
    Token* own = room + omp_get_thread_num() * room_stride;
#else
    Token* own = room;
#endif
    const Row row{draws.logits + draws.rows[i] * draws.stride,
                  draws.limits[i],
                  draws.top_values[i],
                  draws.temperatures[i],
                  draws.keys[2 * i],
                  draws.keys[2 * i + 1],
                  draws.spread_ids,
                  own};
    drawn[i] = draw_row(row, draws.top_ks[i], draws.top_ps[i], draws.min_ps[i]);
  }
}

// Logits as whole numbers in the same order, both zeros as one; and those of NaN, in magnitude, are above INFINITE.
template <class T>
struct Ordered;
template <>
struct Ordered<float> {
  using Bits = int32_t;
  static constexpr int32_t INFINITE = 0x7f800000;
  static float value(float logit) { return logit; }
};
template <>
struct Ordered<uint16_t> {
  using Bits = int16_t;
  static constexpr int16_t INFINITE = 0x7f80;
  static float value(uint16_t logit) {
    const uint32_t bits = uint32_t(logit) << 16;
    float wide;
    __builtin_memcpy(&wide, &bits, sizeof wide);
    return wide;
  }
};

template <class T, class Bits = typename Ordered<T>::Bits>
static inline Bits magnitude_of(T logit) {
  Bits bits;
  __builtin_memcpy(&bits, &logit, sizeof bits);
  return Bits(bits & (sizeof(Bits) == 4 ? INT32_MAX : INT16_MAX));
}

template <class T, class Bits = typename Ordered<T>::Bits>
static inline Bits place_of(T logit) {
  Bits bits;
  __builtin_memcpy(&bits, &logit, sizeof bits);
  const Bits sign = Bits(bits >> (8 * sizeof bits - 1));
  return Bits((magnitude_of(logit) ^ sign) - sign);
}

// The lowest id of the largest logit; a NaN is larger than all. Only the part of the row that has it is looked through.
template <class T, class Bits = typename Ordered<T>::Bits>
static void likeliest_row(const T* row, int64_t size, int64_t* id, float* value) {
  Bits most = 0, largest = 0;
  int64_t start = -1;
  for (int64_t i = 0; i < size; i += CHUNK) {
    const int64_t end = i + CHUNK < size ? i + CHUNK : size;
    Bits part = place_of(row[i]);
    for (int64_t j = i; j < end; ++j) {
      const Bits place = place_of(row[j]), magnitude = magnitude_of(row[j]);
      part = place > part ? place : part;
      largest = magnitude > largest ? magnitude : largest;
    }
    if (start < 0 || part > most) most = part, start = i;
  }
  int64_t at = start;
  if (largest > Ordered<T>::INFINITE) {
    for (at = 0; magnitude_of(row[at]) <= Ordered<T>::INFINITE;) ++at;
  } else {
    while (place_of(row[at]) != most) ++at;
  }
  *id = at;
  *value = Ordered<T>::value(row[at]);
}

template <class T>
static void likeliest(const T* logits, int64_t stride, const int64_t* rows, const int64_t* limits, int64_t count,
                      int64_t* ids, float* values) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (int64_t i = 0; i < count; ++i) likeliest_row(logits + rows[i] * stride, limits[i], ids + i, values + i);
}

}  // namespace HF_ISA

HF_EXPORT(likeliest_f32)(const float* logits, int64_t stride, const int64_t* rows, const int64_t* limits, int64_t count,
                         int64_t* ids, float* values) {
  HF_ISA::likeliest(logits, stride, rows, limits, count, ids, values);
}

HF_EXPORT(likeliest_bf16)(const uint16_t* logits, int64_t stride, const int64_t* rows, const int64_t* limits,
                          int64_t count, int64_t* ids, float* values) {
  HF_ISA::likeliest(logits, stride, rows, limits, count, ids, values);
}

// `room` holds eight bytes for each token of the vocabulary, `room_stride` of them for each thread.
HF_EXPORT(draw)(const float* logits, int64_t stride, const int64_t* rows, const int64_t* limits, int64_t count,
                const float* top_values, const float* temperatures, const int64_t* top_ks, const double* top_ps,
                const double* min_ps, const uint32_t* keys, const uint32_t* spread_ids, void* room, int64_t room_stride,
                int64_t* drawn) {
  const HF_ISA::Draws draws{logits, stride,       count,  rows,   limits, top_values, temperatures,
                            top_ks, top_ps, min_ps, keys,   spread_ids};
  HF_ISA::draw(draws, static_cast<HF_ISA::Token*>(room), room_stride, drawn);
}
