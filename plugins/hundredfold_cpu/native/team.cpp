// See team.h.
#include "team.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "workspace.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
// How long a part that somebody computes is waited for at least, before it is computed again.
constexpr std::chrono::microseconds PATIENCE{6};
// How long a part that cannot be computed again is waited for, before others may run on this core.
constexpr std::chrono::microseconds IDLE{60};

constexpr int64_t MOST_THREADS = 64, MOST_PARTS = 4096;

// Parts of a job that nobody has taken, in one word: who takes one knows that the job is still that one.
struct Range {
  uint64_t number : 32;  // of the job, its last bits
  uint64_t first : 16, last : 16;
};

struct Team {
  struct alignas(64) Line {
    std::atomic<uint64_t> word{0};
  };
  alignas(64) std::atomic<uint64_t> number{1};  // of the job that all before are done of
  Line ranges[MOST_THREADS];
  alignas(64) std::atomic<uint64_t> states[MOST_PARTS];  // 2 * number: is put in place; and 1 more: is in place
};

// What a thread knows: the job that it is at, how that is cut, and how long it takes for a part.
struct Member {
  int64_t threads = 0;  // of its team; none for who is in no team
  int64_t thread = 0;
  uint64_t number = 0;
  int64_t each = 0, parts = 0;
  Clock::duration part{0};
};

// One at a time: Python's caller is one thread. Another one finds it taken, and goes without.
Team team;
std::atomic<bool> taken{false};
thread_local Member self;

void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool is_over(uint64_t number) { return team.number.load(std::memory_order_acquire) > number; }

void compute(const Job& job, int64_t part) {
  const int64_t first = part * self.each, last = first + self.each < job.count ? first + self.each : job.count;
  void* room = job.room ? workspace(Workspace::RESULT, size_t(last - first) * job.room) : nullptr;
  job.compute(job.context, first, last, room);
  const uint64_t number = self.number;
  std::atomic<uint64_t>& state = team.states[part];
  if (job.put) {
    uint64_t before = state.load(std::memory_order_relaxed);
    if (before >= 2 * number || !state.compare_exchange_strong(before, 2 * number)) return;
    job.put(job.context, first, last, room);
  }
  state.store(2 * number + 1, std::memory_order_release);
}

// The next part of a thread's range, or what is at its end; none: -1.
int64_t take(int64_t thread) {
  std::atomic<uint64_t>& word = team.ranges[thread].word;
  const uint64_t number = uint32_t(self.number);
  for (uint64_t seen = word.load();;) {
    Range range;
    std::memcpy(&range, &seen, sizeof range);
    if (range.number != number) {  // what is left there is of a job before, or the calling thread is late
      if (is_over(self.number)) return -1;
      range.number = number;
      range.first = uint64_t(self.parts * thread / self.threads), range.last = uint64_t(self.parts * (thread + 1) / self.threads);
    }
    if (range.first >= range.last) return -1;
    const int64_t part = thread == self.thread ? range.first++ : --range.last;
    uint64_t left;
    std::memcpy(&left, &range, sizeof left);
    if (word.compare_exchange_weak(seen, left)) return part;
  }
}

void take_parts(const Job& job) {
  const auto begun = Clock::now();
  int64_t count = 0;
  for (int64_t i = 0; i < self.threads; ++i) {
    const int64_t thread = (self.thread + i) % self.threads;
    for (int64_t part; (part = take(thread)) >= 0; ++count) compute(job, part);
  }
  if (!count) return;
  // Who was off its core meanwhile does not become patient by that.
  const auto each = (Clock::now() - begun) / count, most = 2 * self.part + PATIENCE;
  self.part = each < most ? each : most;
}

// Until the part is in place, or the others are further on; whether the former.
bool wait_for(const Job& job, int64_t part) {
  const uint64_t number = self.number;
  const std::atomic<uint64_t>& state = team.states[part];
  const auto in_place = [&] { return state.load(std::memory_order_acquire) == 2 * number + 1; };
  if (in_place()) return true;
  const auto patience = PATIENCE + self.part;
  for (const auto begun = Clock::now(); !in_place();) {
    if (is_over(number)) return false;
    const auto waited = Clock::now() - begun;
    if (job.put && waited >= patience && state.load(std::memory_order_relaxed) < 2 * number)
      compute(job, part);
    else if (waited >= IDLE)
      std::this_thread::yield();
    else
      rest();
  }
  return true;
}

}  // namespace

bool in_team() { return self.threads > 0; }

void run_by_team(const Job& job) {
  const uint64_t number = ++self.number;
  if (is_over(number)) return;
  const int64_t least = job.count / MOST_PARTS + 1;
  self.each = job.each < least ? least : job.each, self.parts = (job.count + self.each - 1) / self.each;
  take_parts(job);
  for (int64_t part = 0; part < self.parts; ++part)
    if (!wait_for(job, part)) return;
  uint64_t own = number;
  team.number.compare_exchange_strong(own, number + 1);
}

void with_team(int64_t threads, void (*make)(const void* list), const void* list) {
  if (threads < 2 || threads > MOST_THREADS || taken.exchange(true)) return make(list);
#ifdef _OPENMP
  const uint64_t before = team.number.load() - 1;
#pragma omp parallel num_threads(int(threads))
  {
    self.threads = threads, self.thread = omp_get_thread_num(), self.number = before;
    make(list);
    self.threads = 0;
  }
#else
  make(list);
#endif
  taken.store(false);
}
