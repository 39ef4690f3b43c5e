// See workspace.h.
#include "workspace.h"

#include "team.h"

#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t LINE = 64;

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
    if (leads_team()) wait_for_late();
    std::free(own.memory);
    own.bytes = (bytes + LINE - 1) / LINE * LINE;
    own.memory = std::aligned_alloc(LINE, own.bytes);
    if (!own.memory) {
      std::fprintf(stderr, "out of memory: a kernel needs %zu bytes to work in\n", own.bytes);
      std::abort();
    }
  }
  return own.memory;
}
