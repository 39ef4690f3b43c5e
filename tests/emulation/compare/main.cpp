// Compares every kernel of every instruction set that runs here with the portable one, bit by bit.
//
//   compare LIBRARY [CASES] [SEED]
//
// Prints a line for each kernel, with a sum over the portable results: it is the same on every processor. Ends with
// "N passed, N failed". As the first process of a machine it powers that machine off in the end.
#include <signal.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "support.h"


namespace {

void crashed(int signal) {
  std::printf("signal %d in: %s\n0 passed, 1 failed\n", signal, now);
  std::fflush(stdout);
  _exit(1);
}

// Kernels that no comparison calls: the library has learned something that this program has not.
int unknown(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string prefix = "hf_portable_", words = "_words";
  std::set<std::string> known;
  for (const char* type : {"f32", "bf16"}) {
    for (const char* kernel : {"rms_norm", "add", "add_rms_norm", "rotate", "gated", "channel_int8", "lookup", "likeliest"})
      known.insert(std::string(kernel) + "_" + type);
    for (const char* encoding : {"fp32", "bf16", "int8", "fp8", "fp8_e5m2", "int4"})
      known.insert(std::string("attention_") + type + "_" + encoding);
  }
  for (const char* kernel : {"linear", "dense_bf16", "grouped_int8_float32", "grouped_int8_bfloat16", "pack_channel_int8", "draw"})
    known.insert(kernel);
  std::set<std::string> missing;
  for (size_t at = bytes.find(prefix); at != std::string::npos; at = bytes.find(prefix, at + 1)) {
    std::string name = bytes.c_str() + at + prefix.size();
    if (name.size() > words.size() && name.compare(name.size() - words.size(), words.size(), words) == 0)
      name.resize(name.size() - words.size());
    const bool own = name.find_first_of(".%") == std::string::npos;  // no part that the compiler made of a function
    if (!name.empty() && own && !known.count(name)) missing.insert(name);
  }
  for (const std::string& name : missing) std::printf("%s is compared with nothing\n", name.c_str());
  return int(missing.size());
}

int run(const char* path, int cases, uint64_t seed) {
  const Library library(path);
  std::printf("instruction sets:");
  for (const std::string& isa : library.isas()) std::printf(" %s", isa.c_str());
  std::printf("\n");
  std::fflush(stdout);
  int wrong = unknown(path);
  wrong += compare_linear(library, seed, cases);
  wrong += compare_integer(library, seed, cases);
  wrong += compare_elementwise(library, seed, cases);
  wrong += compare_sampling(library, seed, cases);
  wrong += compare_attention(library, seed, (cases + 1) / 2);
  std::printf("%d passed, %d failed\n", wrong ? 0 : 1, wrong);
  std::fflush(stdout);
  return wrong ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  const bool first = getpid() == 1;
  for (int signal : {SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGABRT}) ::signal(signal, crashed);
  if (first) mount("proc", "/proc", "proc", 0, nullptr);
  const char* path = count > 1 ? arguments[1] : "/native.so";
  const int cases = count > 2 ? std::atoi(arguments[2]) : 20;
  const int code = run(path, cases, count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1);
  if (first) {
    std::fflush(stdout);
    sleep(1);
    reboot(RB_POWER_OFF);
  }
  return code;
}
