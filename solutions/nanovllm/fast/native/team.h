// A team of threads that walks through one step together, one shared loop after another.
#pragma once
#include <sched.h>

#include <atomic>
#include <vector>

// One shared loop: which item is next, and how many are done.
struct Loop {
  alignas(64) std::atomic<int> next{0};
  alignas(64) std::atomic<int> done{0};
};

// One thread's walk through the loops of a step. Nobody waits for a thread, only for the items: one
// that the system has put aside holds up the others by the item in its hands, and no more. When it
// is back, it finds the loops that are over empty, and catches up. So the number of items must be
// known before a step begins.
class Walk {
 public:
  explicit Walk(std::vector<Loop>& loops) : loops_(loops) {}

  // Every thread calls this with the same loops in the same order; each item is done by one of
  // them, whoever is free, and nobody goes on before all are done.
  template <class Work>
  void share(int items, Work work) {
    Loop& loop = loops_.at(place_++);
    for (int i; (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      work(i);
      loop.done.fetch_add(1, std::memory_order_release);
    }
    for (int spins = 0; loop.done.load(std::memory_order_acquire) < items;) {
      if (++spins > 2000) sched_yield();  // more threads than free cores
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  std::vector<Loop>& loops_;
  int place_ = 0;
};
