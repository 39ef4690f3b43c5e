// See workspace.h.
#include "workspace.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t LINE = 64;
constexpr size_t RESERVED = size_t(1) << 30;  // addresses only: memory is taken at the first touch

[[noreturn]] void end(size_t bytes) {
  std::fprintf(stderr, "out of memory: a kernel needs %zu bytes to work in\n", bytes);
  std::abort();
}

struct Buffer {
  void* memory = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(memory); }
};

thread_local Buffer buffers[size_t(Workspace::COUNT)];

}  // namespace

void* workspace(Workspace kind, size_t bytes) {
  Buffer& own = buffers[size_t(kind)];
  if (own.bytes < bytes) {
    std::free(own.memory);
    own.bytes = (bytes + LINE - 1) / LINE * LINE;
    own.memory = std::aligned_alloc(LINE, own.bytes);
    if (!own.memory) end(own.bytes);
  }
  return own.memory;
}

// It never moves, so who is late reads from it whatever others need by then.
void* team_workspace(size_t bytes) {
  static void* const reserved =
      mmap(nullptr, RESERVED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED || bytes > RESERVED) end(bytes);
  return reserved;
}
