// What every comparison needs: random numbers, memory that ends at a page nobody may touch, the library's functions,
// and a report of where an instruction set's bits differ from the portable ones.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

// The same numbers everywhere (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }
  int64_t among(std::initializer_list<int64_t> values) { return values.begin()[below(int64_t(values.size()))]; }
  bool chance(int percent) { return below(100) < percent; }
  float unit() { return float(int64_t(bits() >> 40) - (1 << 23)) * 0x1p-23f; }  // [-1, 1)

 private:
  uint64_t state_;
};

// `count` elements; one element past the last, and the process ends with the page's address.
template <class T>
class Memory {
 public:
  explicit Memory(int64_t count);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  T* data() const { return data_; }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) const { return data_[i]; }
  void fill(const std::function<T(int64_t)>& f) {
    for (int64_t i = 0; i < count_; ++i) data_[i] = f(i);
  }

 private:
  void* base_;
  size_t bytes_;
  T* data_;
  int64_t count_;
};

// Numbers as activations are; of `wild` ones some are infinite, NaN, huge, tiny or equal.
enum class Kind { PLAIN, WILD };
float number(Random& random, Kind kind);
uint16_t to_bf16(float x);
uint16_t to_half(float x);  // of numbers that halves hold well enough: truncated

template <class T>
T element(Random& random, Kind kind) {
  const float x = number(random, kind);
  if constexpr (std::is_same_v<T, uint16_t>) return to_bf16(x);
  else return x;
}

class Library {
 public:
  explicit Library(const char* path);
  bool supports(const std::string& isa) const;
  const std::vector<std::string>& isas() const { return isas_; }  // portable first
  // hf_<name>
  template <class... A>
  void common(const std::string& name, A... a) const {
    reinterpret_cast<void (*)(A...)>(find("hf_" + name))(a...);
  }
  // hf_<isa>_<name>; avx512amx has some kernels only, and others are avx512vnni's.
  template <class... A>
  void call(const std::string& isa, const std::string& name, A... a) const {
    const std::string own = "hf_" + isa + "_" + name;
    reinterpret_cast<void (*)(A...)>(isa == "avx512amx" && !has(own) ? find("hf_avx512vnni_" + name) : find(own))(a...);
  }
  bool has(const std::string& symbol) const;
  void* find(const std::string& symbol) const;

 private:
  void* handle_;
  std::vector<std::string> isas_;
};

// One kernel's results over all cases and instruction sets.
class Report {
 public:
  Report(const Library& library, std::string kernel) : library_(library), kernel_(std::move(kernel)) {}

  // `compute(isa, out)` writes `count` elements of T, which begin as a pattern that has to stay where nothing belongs.
  template <class T>
  void compare(const std::string& what, int64_t count, const std::function<void(const std::string&, T*)>& compute);

  int finish() const;  // prints one line; how many cases differed

 private:
  void differs(const std::string& isa, const std::string& what, int64_t at, double got, double want);
  void hash(uint64_t bits) { hash_ = (hash_ ^ bits) * 0x100000001b3u; }

  const Library& library_;
  std::string kernel_;
  int cases_ = 0, wrong_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325u;
};

// What case is running, for the report of a crash.
extern char now[256];

// Each compares some kernels, `cases` of each, and returns how many differed.
int compare_linear(const Library& library, uint64_t seed, int cases);
int compare_integer(const Library& library, uint64_t seed, int cases);
int compare_elementwise(const Library& library, uint64_t seed, int cases);
int compare_attention(const Library& library, uint64_t seed, int cases);
int compare_sampling(const Library& library, uint64_t seed, int cases);
