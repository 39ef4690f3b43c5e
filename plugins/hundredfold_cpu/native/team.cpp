// See team.h.
#include "team.h"

#include <atomic>
#include <chrono>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int64_t MOST_THREADS = 256;
using Clock = std::chrono::steady_clock;
// How long a part that somebody computes is waited for, before it is computed again: about as long as that takes.
constexpr std::chrono::microseconds PATIENCE{6};
// How long a thread without work looks for some, before it lets others run on its core.
constexpr std::chrono::microseconds IDLE{60};

// The number of a job and its next part in one word: who takes a part knows that the job is still that one.
constexpr uint64_t PARTS = 1 << 16, CLOSED = PARTS - 1, OVER = ~uint64_t(0);

struct alignas(64) Line {
  std::atomic<uint64_t> value{0};
};

struct Team {
  Line next;                      // number * PARTS + part; CLOSED where none may be taken
  Job job;                        // written only while `next` is closed
  Line busy[MOST_THREADS];        // whether a thread computes
  std::atomic<uint64_t> states[Job::MOST_PARTS];  // 2 * number: is put in place; and 1 more: is in place
  uint64_t number = 0;
  int64_t threads = 0;
};

// One at a time: Python's caller is one thread. Another one finds it taken, and goes without.
Team team;
std::atomic<bool> taken{false};
thread_local bool leader = false;
alignas(64) thread_local unsigned char room[Job::ROOM];

void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void compute(const Job& job, uint64_t number, int64_t part, int64_t thread) {
  job.compute(job.context, part, thread, room);
  std::atomic<uint64_t>& state = team.states[part];
  if (job.put) {
    uint64_t before = state.load(std::memory_order_relaxed);
    if (before >= 2 * number || !state.compare_exchange_strong(before, 2 * number)) return;
    job.put(job.context, part, room);
  }
  state.store(2 * number + 1, std::memory_order_release);
}

// Takes parts until there are none; whether there was one. `own` is the thread's copy of job `known`.
bool take_parts(int64_t thread, Job& own, uint64_t& known) {
  bool any = false;
  for (uint64_t next = team.next.value.load(); next != OVER && next % PARTS != CLOSED;) {
    const uint64_t number = next / PARTS;
    if (known != number) own = team.job;  // may be half of the next one, but then nothing can be taken
    known = number;
    if (next % PARTS >= uint64_t(own.parts)) break;
    if (!team.next.value.compare_exchange_strong(next, next + 1)) {
      if (next / PARTS != number) known = 0;
      continue;
    }
    compute(own, number, int64_t(next % PARTS), thread);
    any = true;
    next = team.next.value.load();
  }
  return any;
}

void follow(int64_t thread) {
  Job own;
  uint64_t known = 0;
  std::atomic<uint64_t>& busy = team.busy[thread].value;
  for (auto last = Clock::now(); team.next.value.load(std::memory_order_acquire) != OVER;) {
    if (team.next.value.load(std::memory_order_relaxed) % PARTS != CLOSED) {
      busy.store(1);
      if (take_parts(thread, own, known)) last = Clock::now();
      busy.store(0);
    }
    rest();
    if (Clock::now() - last > IDLE) std::this_thread::yield();
  }
}

}  // namespace

bool leads_team() { return leader; }

void run_by_team(const Job& job) {
  const uint64_t number = ++team.number;
  std::atomic_thread_fence(std::memory_order_release);  // whoever sees some of it also sees that `next` is closed
  team.job = job;
  team.next.value.store(number * PARTS);
  Job own = job;
  uint64_t known = number;
  take_parts(0, own, known);
  team.next.value.store(number * PARTS + CLOSED);
  for (int64_t part = 0; part < job.parts; ++part) {
    const auto state = [&] { return team.states[part].load(std::memory_order_acquire); };
    if (state() == 2 * number + 1) continue;
    for (const auto begun = Clock::now(); state() != 2 * number + 1;) {
      if (job.put && state() < 2 * number && Clock::now() - begun >= PATIENCE)
        compute(own, number, part, 0);
      else
        rest();
    }
  }
}

void wait_for_late() {
  for (int64_t thread = 1; thread < team.threads; ++thread)
    while (team.busy[thread].value.load()) rest();
}

void with_team(int64_t threads, void (*lead)(const void* list), const void* list) {
  if (threads < 2 || threads > MOST_THREADS || taken.exchange(true)) return lead(list);
#ifdef _OPENMP
  team.threads = threads;
  team.next.value.store(team.number * PARTS + CLOSED);
#pragma omp parallel num_threads(int(threads))
  {
    if (omp_get_thread_num() == 0) {
      leader = true;
      lead(list);
      leader = false;
      team.next.value.store(OVER);
    } else {
      follow(omp_get_thread_num());
    }
  }
#else
  lead(list);
#endif
  taken.store(false);
}
