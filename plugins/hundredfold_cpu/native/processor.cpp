// Which instruction sets this library was built for and this processor has.
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define HF_PUBLIC extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
// Linux lets a process use the matrix unit's tiles when it asks; threads that it has and will have may, too.
static bool tiles_are_granted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return false;
#endif
}
#endif

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
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (std::strcmp(isa, "avx512vnni") == 0) return vnni;
  if (std::strcmp(isa, "avx512amx") == 0)
    return vnni && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16") &&
           __builtin_cpu_supports("avx512bf16") && tiles_are_granted();
#endif
  return 0;
}
