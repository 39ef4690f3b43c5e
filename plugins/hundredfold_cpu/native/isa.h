// Names that differ per instruction set, so that one source can be compiled for several into one library.
//
// A kernel file keeps everything but its exported functions in namespace HF_ISA and uses no inline function of the
// standard library that does work: the linker would keep one instruction set's copy of it for all.
#pragma once

#include <cstddef>
#include <cstdint>

#define HF_PORTABLE 0
#define HF_AVX2 1
#define HF_AVX512 2
#define HF_AVX512VNNI 3
#define HF_AVX512AMX 4

#define HF_JOIN_(a, b, c) a##_##b##_##c
#define HF_JOIN(a, b, c) HF_JOIN_(a, b, c)

// The exported function `name` of this instruction set: hf_avx2_name.
#define HF_EXPORT(name) extern "C" __attribute__((visibility("default"))) void HF_JOIN(hf, HF_ISA, name)
