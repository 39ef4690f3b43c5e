// What Python hands to attention: a layer over its cache, and a step dealt out to threads. The same for every instruction
// set; tests/emulation fills it in, too.
#pragma once

#include <cstdint>

// Structure that attention.py fills in; all integers are 64 bits wide.
struct Layer {
  uint8_t* blocks;
  const float* sinks;
  int64_t num_heads, num_kv_heads, head_dim, block_size;
  int64_t window;         // tokens that a query sees, its own included
  double scale, softcap;  // softcap 0 for none
  uint8_t* sketches;      // of every block's keys, see sketch.h; null where none are kept
};

// Structures that tiles.py fills in; all integers are 64 bits wide.
struct Tile {
  int64_t row, first, count, position, writes;  // queries: flat index, how many, position in the sequence
  int64_t parts;                                // where the results of single runs go, in floats; -1 when one item does all
  int64_t blocks;                               // of a single query: how many it attends to at least; 0 for all
};

struct Item {
  int64_t tile, head, heads, run;  // run -1: all of them
};

struct Piece {
  int64_t first, count;  // tokens whose keys and values are written before anything is read
};

struct Step {
  const Tile* tiles;
  const Item* items;
  int64_t num_items;
  const Item* joins;  // of tiles whose runs are items of their own
  int64_t num_joins;
  const Piece* pieces;
  int64_t num_pieces;
  const int32_t* tables;
  int64_t table_stride;
  const int64_t* slots;
  float* scratch;  // `scratch_stride` floats for each thread
  int64_t scratch_stride;
  float* parts;
  int64_t num_threads;
  int64_t first_blocks, last_blocks;  // see Choice
  double left_out;                    // see Choice
  int64_t choice_room;                // floats at the end of a thread's scratch
};
