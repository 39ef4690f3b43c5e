// See support.h.
#include "support.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

char now[256] = "start";

template <class T>
Memory<T>::Memory(int64_t count) : count_(count) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), used = size_t(count) * sizeof(T);
  bytes_ = (used + page - 1) / page * page + page;
  base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED || mprotect(static_cast<char*>(base_) + bytes_ - page, page, PROT_NONE) != 0) std::abort();
  data_ = reinterpret_cast<T*>(static_cast<char*>(base_) + bytes_ - page - used);
}
template <class T>
Memory<T>::~Memory() {
  munmap(base_, bytes_);
}
template class Memory<float>;
template class Memory<double>;
template class Memory<int8_t>;
template class Memory<uint8_t>;
template class Memory<uint16_t>;
template class Memory<int32_t>;
template class Memory<uint32_t>;
template class Memory<int64_t>;

float number(Random& random, Kind kind) {
  const float x = random.unit() + random.unit() + random.unit();
  if (kind == Kind::PLAIN || random.chance(93)) return x;
  switch (random.below(9)) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return x * 0x1p100f;
    case 3: return x * 0x1p-130f;
    case 4: return x * 1000.0f;
    case 5: return __builtin_inff();
    case 6: return -__builtin_inff();
    case 7: return __builtin_nanf("");
    default: return 0.5f;
  }
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
uint16_t to_bf16(float x) { return x != x ? uint16_t(0x7fc0) : uint16_t((bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1)) >> 16); }
uint16_t to_half(float x) {
  const uint32_t bits = bits_of(x), rest = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (rest < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &rest, 4);
    return uint16_t(sign | uint32_t(magnitude * 0x1p24f));
  }
  return uint16_t(sign | ((rest >> 13) - (112u << 10)));
}

Library::Library(const char* path) : handle_(dlopen(path, RTLD_NOW)) {
  if (!handle_) {
    std::printf("%s\n", dlerror());
    std::exit(2);
  }
  for (const char* isa : {"portable", "avx2", "avx512", "avx512vnni", "avx512amx"})
    if (supports(isa)) isas_.push_back(isa);
}
bool Library::supports(const std::string& isa) const {
  return reinterpret_cast<int (*)(const char*)>(find("hf_supports"))(isa.c_str()) != 0;
}
bool Library::has(const std::string& symbol) const { return dlsym(handle_, symbol.c_str()) != nullptr; }
void* Library::find(const std::string& symbol) const {
  void* found = dlsym(handle_, symbol.c_str());
  if (!found) {
    std::printf("the library has no %s\n", symbol.c_str());
    std::exit(2);
  }
  return found;
}

namespace {

constexpr uint8_t PATTERN = 0xa5;

double value_of(float x) { return x; }
double value_of(uint16_t x) {  // bfloat16
  const uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
double value_of(int64_t x) { return double(x); }
double value_of(uint8_t x) { return x; }

// NaN is NaN: whose sign and payload come from depends on the order of operands, which is the compiler's.
template <class T>
uint64_t canonical(T x) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, uint16_t>)
    if (value_of(x) != value_of(x)) return 0x7fc00000u;
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}

}  // namespace

template <class T>
void Report::compare(const std::string& what, int64_t count,
                     const std::function<void(const std::string&, T*)>& compute) {
  ++cases_;
  Memory<T> want(count), got(count);
  for (const std::string& isa : library_.isas()) {
    std::snprintf(now, sizeof now, "%s %s %s", kernel_.c_str(), isa.c_str(), what.c_str());
    Memory<T>& out = isa == "portable" ? want : got;
    std::memset(out.data(), PATTERN, size_t(count) * sizeof(T));
    compute(isa, out.data());
    if (isa == "portable") {
      for (int64_t i = 0; i < count; ++i) hash(canonical(want[i]));
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (canonical(got[i]) == canonical(want[i])) continue;
      differs(isa, what, i, value_of(got[i]), value_of(want[i]));
      break;
    }
  }
}
template void Report::compare(const std::string&, int64_t, const std::function<void(const std::string&, float*)>&);
template void Report::compare(const std::string&, int64_t, const std::function<void(const std::string&, uint16_t*)>&);
template void Report::compare(const std::string&, int64_t, const std::function<void(const std::string&, int64_t*)>&);
template void Report::compare(const std::string&, int64_t, const std::function<void(const std::string&, uint8_t*)>&);

void Report::differs(const std::string& isa, const std::string& what, int64_t at, double got, double want) {
  if (++wrong_ <= 5)
    std::printf("  %s %s: element %lld of (%s) is %.9g, portable gives %.9g\n", kernel_.c_str(), isa.c_str(),
                static_cast<long long>(at), what.c_str(), got, want);
}

int Report::finish() const {
  std::printf("%-28s %4d cases  %016llx  %s\n", kernel_.c_str(), cases_, static_cast<unsigned long long>(hash_),
              wrong_ ? "DIFFERS" : "equal");
  std::fflush(stdout);
  return wrong_;
}
