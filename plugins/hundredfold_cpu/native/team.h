// Threads that go through a list of calls together.
//
// Other processes want the same cores, and a thread that is off its core for a moment should hold up nobody. So no thread
// leads: each makes all calls of the list, and what a call has to compute is a job, cut in parts. Each thread has a range of
// them, the same in every job of that size; who has done its own takes from the others' ends. A part is computed into memory
// of the thread's own and put in place after that. When all parts are taken and one does not come, who waits computes it again
// and puts it in place; who comes too late finds that done, and passes over what the others did meanwhile. Bits are the same
// whoever computed them.
//
// What a call does outside of jobs every thread does: nothing that others see, and from numbers that may be old by then.
#pragma once

#include <cstddef>
#include <cstdint>

struct Job {
  int64_t count;  // of what is dealt out
  int64_t each;   // in a part, those that follow each other
  size_t room;    // bytes that the result of one takes
  void (*compute)(const void* context, int64_t first, int64_t last, void* room);
  // Null where `compute` puts its result in place itself: such a part is computed once, and waited for.
  void (*put)(const void* context, int64_t first, int64_t last, void* room);
  const void* context;  // the thread's own
};

// Whether the calling thread is one of a team; else a kernel deals out its work itself.
bool in_team();
// By all threads of the team, with the same numbers: returns when all is in place.
void run_by_team(const Job& job);
// Calls make(list) on each thread of a team of so many; alone where there cannot be one.
void with_team(int64_t threads, void (*make)(const void* list), const void* list);

// compute(first, last, room) and put(first, last, room), see `Job`.
template <class C, class P>
static inline void by_team(int64_t count, int64_t each, size_t room, const C& compute, const P& put) {
  struct Both {
    const C& compute;
    const P& put;
  };
  const Both both{compute, put};
  const auto call_compute = [](const void* own, int64_t first, int64_t last, void* room) {
    static_cast<const Both*>(own)->compute(first, last, room);
  };
  const auto call_put = [](const void* own, int64_t first, int64_t last, void* room) {
    static_cast<const Both*>(own)->put(first, last, room);
  };
  run_by_team({count, each, room, call_compute, call_put, &both});
}

// compute(first, last), which puts its result in place itself.
template <class C>
static inline void by_team(int64_t count, int64_t each, const C& compute) {
  const auto call = [](const void* own, int64_t first, int64_t last, void*) { (*static_cast<const C*>(own))(first, last); };
  run_by_team({count, each, 0, call, nullptr, &compute});
}
