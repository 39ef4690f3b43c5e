// Functions that take their arguments from an array of eight-byte words, so that calls can be kept and run as a list.
#pragma once

#include "isa.h"

namespace HF_ISA {

template <class T>
static inline T from_word(const int64_t* word) {
  T value;
  __builtin_memcpy(&value, word, sizeof value);  // floats lie in the first bytes: little-endian, as everywhere here
  return value;
}

template <size_t... I>
struct Order {};

template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};

template <size_t... I>
struct Count<0, I...> {
  using Up = Order<I...>;
};

template <class... A, size_t... I>
static inline void spread_words(void (*function)(A...), const int64_t* words, Order<I...>) {
  function(from_word<A>(words + I)...);
}

template <class... A>
static inline void call_with_words(void (*function)(A...), const int64_t* words) {
  spread_words(function, words, typename Count<sizeof...(A)>::Up());
}

}  // namespace HF_ISA

// Exports `name`_words, which calls the exported function `name`.
#define HF_WORDS(name)                                                              \
  HF_EXPORT(name##_words)(const int64_t* words) {                                   \
    HF_ISA::call_with_words(&HF_JOIN(hf, HF_ISA, name), words);                     \
  }
