// Paged attention in every encoding: random lives of a few sequences, one step after the other over one cache. In some
// lives a single query late in its sequence attends to a part of its blocks.
#include <algorithm>

#include "../../../plugins/hundredfold_cpu/native/step.h"
#include "support.h"

namespace {

struct Encoding {
  const char* name;
  int64_t bits;   // of a code
  int64_t sides;  // bytes beside the codes of a token's key, and of its value
  int64_t bands;  // the same for each band of 32 columns
};

constexpr int64_t LANES = 16, RUN = 512, TILE_ROWS = 24, STRETCH = 256;
int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// What one case is about; all sequences begin empty and grow for a few steps.
struct Model {
  int64_t kv_heads, group, dim, block, window, threads, sequences, blocks_each;
  double softcap;
  bool sinks, sparse;
  Kind kind;

  explicit Model(Random& random) {
    kv_heads = random.among({1, 2, 3}), group = random.among({1, 2, 3, 4, 8}), dim = random.among({2, 15, 16, 40, 64, 80});
    block = random.among({16, 32}), window = random.chance(60) ? int64_t(1) << 62 : random.among({1, 5, 16, 40, 600});
    threads = random.among({1, 1, 2, 5, 16}), sequences = random.among({1, 2, 3});
    softcap = random.chance(25) ? 20.0 : 0.0, sinks = random.chance(25);
    sparse = window > 600 && random.chance(60);
    kind = random.chance(15) ? Kind::WILD : Kind::PLAIN;
    blocks_each = 0;
  }
  int64_t heads() const { return kv_heads * group; }
  int64_t sketch_bytes() const { return kv_heads * block * (4 + up(dim, LANES) / 2); }  // of a block
};

struct Batch {
  std::vector<int64_t> queries, before;
};

// What tiles.py makes: tiles of queries, items of work, runs of their own for some.
struct Work {
  std::vector<Tile> tiles;
  std::vector<Item> items, joins;
  std::vector<Piece> pieces;
  std::vector<float> scratch, parts;
  int64_t stride = 0, choice_room = 0;

  Work(const Model& model, const Batch& batch, Random& random) {
    const int64_t most = std::max<int64_t>(1, TILE_ROWS / model.group), width = up(model.dim, LANES);
    int64_t first = 0, parts_size = 0, largest = 1;
    for (size_t row = 0; row < batch.queries.size(); ++row) {
      const int64_t queries = batch.queries[row];
      const bool split = random.chance(40), written_before = split || queries > most;
      for (int64_t at = 0; at < queries; at += most) {
        const int64_t count = std::min(most, queries - at), position = batch.before[row] + at;
        const int64_t seen = std::max<int64_t>(0, position + 1 - model.window), tile = int64_t(tiles.size());
        const int64_t there = position / model.block + 1, least = 1 + 1 + 1;  // first, last, own
        const bool part = model.sparse && queries == 1 && there > least;
        if (part) {
          const int64_t each = up(there, LANES), room = 2 + width / 4 + up(STRETCH, model.block) + 2 * each;
          choice_room = std::max(choice_room, model.group * room + 3 * each);
          tiles.push_back({int64_t(row), first, 1, position, 1, -1, least + random.below(there - least)});
          items.push_back({int64_t(tiles.size()) - 1, 0, model.kv_heads, -1});
          break;
        }
        const int64_t first_run = seen / RUN, end_run = (position + count + RUN - 1) / RUN;
        largest = std::max(largest, count);
        tiles.push_back({int64_t(row), first + at, count, position, !written_before, split ? parts_size : -1, 0});
        if (split) parts_size += (end_run - first_run) * model.kv_heads * count * model.group * (width + 2);
        for (int64_t head = 0; head < model.kv_heads; ++head) {
          if (split) joins.push_back({tile, head, 1, -1});
          for (int64_t run = first_run; split && run < end_run; ++run) items.push_back({tile, head, 1, run});
        }
        if (!split) items.push_back({tile, 0, model.kv_heads, -1});
      }
      for (int64_t at = 0; written_before && at < queries; at += 16)
        pieces.push_back({first + at, std::min<int64_t>(16, queries - at)});
      first += queries;
    }
    stride = largest * model.group * (3 * width + 6 + RUN + RUN / 2) + choice_room;
    // anything may lie there: whole threads may take part
    scratch.assign(size_t(stride * model.threads), __builtin_nanf("")), parts.assign(size_t(parts_size), __builtin_nanf(""));
  }
};

template <class T>
struct Sequence {  // of steps, the same for each instruction set
  std::vector<Batch> batches;
  std::vector<std::vector<T>> q, k, v;
};

template <class T>
int compare_encoding(const Library& library, uint64_t seed, int cases, const Encoding& encoding, const std::string& type) {
  const std::string name = "attention_" + type + "_" + encoding.name;
  Report report(library, name);
  Random random(seed);
  for (int i = 0; i < cases; ++i) {
    Model model(random);
    Sequence<T> life;
    std::vector<int64_t> length(size_t(model.sequences), 0);
    const int64_t steps = random.among({2, 3});
    int64_t outputs = 0;
    for (int64_t s = 0; s < steps; ++s) {
      Batch batch;
      int64_t tokens = 0;
      for (int64_t& own : length) {
        const int64_t queries = s + 1 == steps ? random.among({1, 1, 3}) : random.among({1, 9, 16, 31, random.chance(10) ? 530 : 47});
        batch.queries.push_back(queries), batch.before.push_back(own);
        own += queries, tokens += queries;
      }
      const auto fill = [&](std::vector<T>& to, int64_t heads) {
        to.resize(size_t(tokens * heads * model.dim));
        for (T& x : to) x = element<T>(random, model.kind);
      };
      life.q.emplace_back(), life.k.emplace_back(), life.v.emplace_back();
      fill(life.q.back(), model.heads()), fill(life.k.back(), model.kv_heads), fill(life.v.back(), model.kv_heads);
      life.batches.push_back(batch);
      outputs += tokens * model.heads() * model.dim;
    }
    for (int64_t own : length) model.blocks_each = std::max(model.blocks_each, up(own, model.block) / model.block);
    const int64_t blocks = model.sequences * model.blocks_each, columns = up(model.dim, encoding.bits == 4 ? 4 : 2) + up(model.dim, LANES);
    const int64_t beside = 2 * (encoding.sides + encoding.bands * (up(model.dim, 32) / 32));
    const int64_t bytes = blocks * model.kv_heads * model.block * (columns * encoding.bits / 8 + beside);
    Memory<int32_t> tables(blocks);
    tables.fill([&](int64_t at) { return int32_t((at * 7 + 3) % blocks); });  // 7 divides none of the sizes but its own
    if (blocks % 7 == 0) tables.fill([&](int64_t at) { return int32_t(blocks - 1 - at); });
    Memory<float> sinks(model.heads());
    sinks.fill([&](int64_t) { return random.unit(); });
    const uint64_t own_seed = random.bits();
    char text[200];
    std::snprintf(text, sizeof text, "kv heads %d group %d dim %d block %d window %d sequences %d tokens %d threads %d wild %d",
                  int(model.kv_heads), int(model.group), int(model.dim), int(model.block), int(std::min<int64_t>(model.window, 9999)),
                  int(model.sequences), int(length[0]), int(model.threads), model.kind == Kind::WILD);
    report.compare<T>(text, outputs, [&](const std::string& isa, T* out) {
      Memory<uint8_t> cache(bytes);
      cache.fill([&](int64_t) { return uint8_t(0); });
      Memory<uint8_t> sketches(model.sparse ? blocks * model.sketch_bytes() : 0);
      sketches.fill([&](int64_t) { return uint8_t(255); });
      const Layer layer{cache.data(), model.sinks ? sinks.data() : nullptr, model.heads(), model.kv_heads, model.dim, model.block,
                        model.window, 1.0 / 8, model.softcap, model.sparse ? sketches.data() : nullptr};
      Random again(own_seed);
      for (size_t s = 0; s < life.batches.size(); ++s) {
        Work work(model, life.batches[s], again);
        std::vector<int64_t> slots;
        for (size_t row = 0; row < life.batches[s].queries.size(); ++row)
          for (int64_t t = 0; t < life.batches[s].queries[row]; ++t) {
            const int64_t position = life.batches[s].before[row] + t;
            slots.push_back(tables[int64_t(row) * model.blocks_each + position / model.block] * model.block + position % model.block);
          }
        const Step step{work.tiles.data(),  work.items.data(),   int64_t(work.items.size()),  work.joins.data(), int64_t(work.joins.size()),
                        work.pieces.data(), int64_t(work.pieces.size()), tables.data(), model.blocks_each, slots.data(),
                        work.scratch.data(), work.stride, work.parts.data(), model.threads, 1, 1, 1.0 / 8, work.choice_room};
        const T *q = life.q[s].data(), *k = life.k[s].data(), *v = life.v[s].data();
        const int64_t q_stride = model.heads() * model.dim, kv_stride = model.kv_heads * model.dim;
        library.call(isa, name, &step, &layer, q, q_stride, k, kv_stride, v, kv_stride, out);
        out += int64_t(slots.size()) * q_stride;
      }
    });
  }
  return report.finish();
}

}  // namespace

int compare_attention(const Library& library, uint64_t seed, int cases) {
  int wrong = 0;
  for (const Encoding& encoding : {Encoding{"fp32", 32, 0, 0}, {"bf16", 16, 0, 0}, {"int8", 8, 4, 0}, {"fp8", 8, 4, 0},
                                   {"fp8_e5m2", 8, 4, 0}, {"int4", 4, 0, 4}}) {
    wrong += compare_encoding<float>(library, seed++, cases, encoding, "f32");
    wrong += compare_encoding<uint16_t>(library, seed++, cases, encoding, "bf16");
  }
  return wrong;
}
