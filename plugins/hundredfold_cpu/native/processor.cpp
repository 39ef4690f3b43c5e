// Which instruction sets this library was built for and this processor has.
#include <cstring>

#define HF_PUBLIC extern "C" __attribute__((visibility("default")))

// 1 if kernels of the named instruction set can run here.
HF_PUBLIC int hf_supports(const char* isa) {
  if (std::strcmp(isa, "portable") == 0) return 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (std::strcmp(isa, "avx2") == 0) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (std::strcmp(isa, "avx512") == 0) return avx512;
  if (std::strcmp(isa, "avx512vnni") == 0) return avx512 && __builtin_cpu_supports("avx512vnni");
#endif
  return 0;
}
