// Threads that go through a list of calls of few rows together.
//
// Other processes want the same cores, and a thread that is off its core for a moment should hold up nobody. So the thread
// that leads takes the calls one after the other; what a call has to compute is cut in parts, of which each thread takes the
// next. A part is computed into memory of the thread's own and put into place after that. When all parts are taken and one
// does not come, the leader computes it again and puts it in place; who comes too late finds that done. Bits are the same
// whoever computed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct Job {
  static constexpr int64_t MOST_PARTS = 256;
  static constexpr size_t ROOM = 1 << 16;  // bytes of a part's result

  int64_t parts;
  void (*compute)(const void* context, int64_t part, int64_t thread, void* room);
  // Null where `compute` puts its result in place itself: such a part is computed once, and waited for.
  void (*put)(const void* context, int64_t part, const void* room);
  alignas(16) unsigned char context[128];

  // A thread that is late computes from what was there once: what the context points to has to stay until the list ends,
  // with whatever content.
  template <class C>
  static Job of(int64_t parts, const C& context) {
    static_assert(sizeof(C) <= sizeof(Job::context) && std::is_trivially_copyable<C>::value, "threads copy it");
    Job job{parts, nullptr, nullptr, {}};
    std::memcpy(job.context, &context, sizeof context);
    return job;
  }
};

// The calling thread leads a team; without one a kernel deals out its work itself.
bool leads_team();
// By the leader: returns when all is in place.
void run_by_team(const Job& job);
// By the leader, before memory is freed that a late thread may read.
void wait_for_late();
// Calls lead(list) on a team of so many threads.
void with_team(int64_t threads, void (*lead)(const void* list), const void* list);
