// How keys and values lie in the cache, in each encoding, and how a token gets there.
//
// A block holds for each kv head one run of bytes: key codes, key scales, value codes, value scales (scales only where
// the encoding has them, a float for each token). Codes lie in units of 32: of keys, sixteen tokens times two
// columns; of values, sixteen columns times two tokens:
//   keys   [tokens / 16][columns / 2][32], columns padded to two
//   values [columns / 16][tokens / 2][32], columns padded to sixteen
// So a vector holds sixteen scores or sixteen columns, and no sum runs across its lanes. In 16 and 8 bits the two of a
// lane lie side by side, where one instruction takes both; floats and fp8 lie sixteen and sixteen. How 4 bits lie says
// nibbles.h.
#pragma once

#include "codes.h"
#include "step.h"

namespace HF_ISA {

constexpr int UNIT = 2 * LANES;

struct Fp32 {
  using Code = float;
  static constexpr bool SCALED = false, INTEGERS = false;
  static constexpr int64_t place(int64_t lane, int64_t which) { return which * LANES + lane; }
  // both sixteens of a unit
  static inline void get(const Code* p, Vec& first, Vec& second) { first = load(p), second = load(p + LANES); }
  static inline void encode(const float* x, Code* codes) { put(codes, load(x)); }
};

struct Bf16 {
  using Code = uint16_t;
  static constexpr bool SCALED = false, INTEGERS = false;
  static constexpr int64_t place(int64_t lane, int64_t which) { return 2 * lane + which; }
  static inline void get(const Code* p, Vec& first, Vec& second) { load_bf16_pairs(p, first, second); }
  static inline void encode(const float* x, Code* codes) { put(codes, load(x)); }
};

// Symmetric: code = x * (127 / largest), rounded half to even; scale = largest / 127.
struct Int8 {
  using Code = int8_t;
  static constexpr bool SCALED = true, INTEGERS = true;  // of keys times int16 queries, int16 weights
  static constexpr float TOP = 127.0f, UNIT_SCALE = 1.0f;
  static constexpr int64_t place(int64_t lane, int64_t which) { return 2 * lane + which; }
  static inline void encode(const float* x, Code* codes) {
    int16_t wide[LANES];
    store_int16(wide, load(x));
    for (int i = 0; i < LANES; ++i) codes[i] = int8_t(wide[i]);
  }
};

// A float as one of 8 bits: FRACTION bits are kept, rounded half to even; it has to fit.
template <int FRACTION, int BIAS>
static inline uint8_t to_small_float(float x) {
  constexpr int DROPPED = 23 - FRACTION, LEAST = 1 - BIAS;  // below 2^LEAST numbers are multiples of 2^(LEAST - FRACTION)
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu;
  const uint32_t half = (1u << (DROPPED - 1)) - 1;
  const uint32_t normal = ((rest + half + (rest >> DROPPED & 1)) >> DROPPED) - (uint32_t(127 - BIAS) << FRACTION);
  float magnitude;
  __builtin_memcpy(&magnitude, &rest, 4);
  const float whole = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
  const uint32_t small = uint32_t((magnitude * float(1u << (FRACTION - LEAST)) + whole) - whole);
  return uint8_t(sign | (rest < uint32_t(127 + LEAST) << 23 ? small : normal));
}

// e4m3, the largest becomes 448. What `get` gives is a 256th of the number: the scale makes up for it.
struct Fp8 {
  using Code = uint8_t;
  static constexpr bool SCALED = true, INTEGERS = false;
  static constexpr float TOP = 448.0f, UNIT_SCALE = 256.0f;
  static constexpr int64_t place(int64_t lane, int64_t which) { return which * LANES + lane; }
  static inline void get(const Code* p, Vec& first, Vec& second) { first = load_e4m3(p), second = load_e4m3(p + LANES); }
  static inline void encode(const float* x, Code* codes) {
    for (int i = 0; i < LANES; ++i) codes[i] = to_small_float<3, 7>(x[i]);
  }
};

// e5m2, the largest becomes 57344.
struct Fp8E5m2 {
  using Code = uint8_t;
  static constexpr bool SCALED = true, INTEGERS = false;
  static constexpr float TOP = 57344.0f, UNIT_SCALE = 1.0f;
  static constexpr int64_t place(int64_t lane, int64_t which) { return which * LANES + lane; }
  static inline void get(const Code* p, Vec& first, Vec& second) { first = load_e5m2(p), second = load_e5m2(p + LANES); }
  static inline void encode(const float* x, Code* codes) {
    for (int i = 0; i < LANES; ++i) codes[i] = to_small_float<2, 15>(x[i]);
  }
};

// Asymmetric, 0 to 15: see nibbles.h.
struct Int4 {
  using Code = uint8_t;  // of two
  static constexpr bool SCALED = false, INTEGERS = true;
};

// Encodings with two codes in a byte, and with a scale and an offset for each band of columns.
template <class E>
constexpr bool NIBBLES = false;
template <>
constexpr bool NIBBLES<Int4> = true;
constexpr int64_t BAND = 32;

// Encodings with products of integers and one scale a token.
template <class E>
constexpr bool BYTES = E::INTEGERS && !NIBBLES<E>;

template <class E>
struct SideOf {
  using Type = float;
};
template <>
struct SideOf<Int4> {
  using Type = uint16_t;  // half precision
};

// One layer's cache in the encoding E.
template <class E>
struct Paged {
  using Code = typename E::Code;
  using Side = typename SideOf<E>::Type;
  static constexpr int64_t PACKED = NIBBLES<E> ? 2 : 1;  // codes in a Code
  uint8_t* blocks;
  int64_t heads, dim, size;
  int64_t bands, sides;  // groups of columns with sides of their own, and all sides of a token
  int64_t key_units, panels, key_bytes, value_bytes, scale_bytes, head_bytes;

  explicit Paged(const Layer& layer)
      : blocks(layer.blocks), heads(layer.num_kv_heads), dim(layer.head_dim), size(layer.block_size) {
    bands = NIBBLES<E> ? up(dim, BAND) / BAND : 1, sides = NIBBLES<E> ? 2 * bands : E::SCALED ? 1 : 0;
    key_units = up(dim, 2 * PACKED) / 2, panels = up(dim, LANES) / LANES;
    key_bytes = size * key_units * 2 / PACKED * int64_t(sizeof(Code));
    value_bytes = size * panels * LANES / PACKED * int64_t(sizeof(Code));
    scale_bytes = size * sides * int64_t(sizeof(Side));
    head_bytes = key_bytes + value_bytes + 2 * scale_bytes;
  }

  uint8_t* run(int64_t block, int64_t head) const { return blocks + (block * heads + head) * head_bytes; }
  // of a run: the keys of sixteen tokens that begin at `offset`, and the first panel of the values of those
  Code* keys(uint8_t* run, int64_t offset) const {
    return reinterpret_cast<Code*>(run) + offset * key_units * 2 / PACKED;
  }
  Code* values(uint8_t* run, int64_t offset) const {
    return reinterpret_cast<Code*>(run + key_bytes + scale_bytes) + offset * LANES / PACKED;
  }
  int64_t sixteen_keys() const { return key_units * UNIT / PACKED * int64_t(sizeof(Code)); }  // bytes
  int64_t panel() const { return size * LANES / PACKED; }  // from one panel to the next
  Side* key_scales(uint8_t* run) const { return reinterpret_cast<Side*>(run + key_bytes); }
  Side* value_scales(uint8_t* run) const { return reinterpret_cast<Side*>(run + head_bytes - scale_bytes); }
};

// How numbers become codes whose largest magnitude is `limit`: each is multiplied by `ratio`, and worth `scale`.
struct Quantized {
  float ratio, scale;
};

// `top` is their largest magnitude, NaN or infinite where one is. Below 2^-96 reciprocals overflow: all are 0 then.
static inline Quantized quantized(float top, float limit) {
  if (top >= 0x1p-96f && top < __builtin_inff()) return {limit / top, top / limit};
  return {0.0f, top < 0x1p-96f ? 0.0f : __builtin_nanf("")};
}

static inline float top_of(const float* x, int64_t count) {
  Vec top = zero();
  for (int64_t i = 0; i < count; i += LANES) top = larger_magnitude(top, load(x + i));
  return largest_magnitude(top);
}

constexpr int MOST_DIM = 512;  // so that int32 holds a score's products

// Writes one token's key or value: `put(d, codes)` takes the codes of sixteen columns from `d` on.
template <class E, class T, class F>
static inline void write_part(const T* x, int64_t dim, float* scale, F put) {
  float wide[MOST_DIM];
  const int64_t padded = up(dim, LANES);
  for (int64_t d = 0; d < padded; d += LANES) store(wide + d, get_part(x + d, dim - d));
  float ratio = 0;
  if constexpr (E::SCALED) {
    const Quantized how = quantized(top_of(wide, padded), E::TOP);
    *scale = how.scale * E::UNIT_SCALE, ratio = how.ratio;
  }
  for (int64_t d = 0; d < padded; d += LANES) {
    typename E::Code codes[LANES];
    if constexpr (E::SCALED) store(wide + d, ratio == 0 ? zero() : mul(load(wide + d), broadcast(ratio)));
    E::encode(wide + d, codes);
    put(d, codes);
  }
}

template <class E, class T>
static void write_token(const Paged<E>& paged, int64_t slot, int64_t head, const T* k, const T* v) {
  using Code = typename E::Code;
  const int64_t block = slot / paged.size, offset = slot % paged.size;
  uint8_t* run = paged.run(block, head);
  Code* key = paged.keys(run, offset / LANES * LANES);
  Code* value = paged.values(run, offset / 2 * 2);
  const int64_t lane = offset % LANES, which = offset % 2, columns = 2 * paged.key_units, panel = paged.panel();
  write_part<E>(k, paged.dim, paged.key_scales(run) + offset, [&](int64_t d, const Code* codes) {
    for (int64_t i = 0; i < LANES && d + i < columns; ++i) key[(d + i) / 2 * UNIT + E::place(lane, i % 2)] = codes[i];
  });
  write_part<E>(v, paged.dim, paged.value_scales(run) + offset, [&](int64_t d, const Code* codes) {
    Code* to = value + d / LANES * panel;
    if constexpr (BYTES<E>)
      spread(codes, to + which);
    else
      for (int64_t i = 0; i < LANES; ++i) to[E::place(i, which)] = codes[i];
  });
}

}  // namespace HF_ISA
