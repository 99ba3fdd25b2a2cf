// A team of threads that walks through one step together: shared loops with a barrier after each.
#pragma once
#include <sched.h>

#include <atomic>

class Team {
 public:
  explicit Team(int size) : size_(size) {}

  // Every thread of the team calls this with the same loop; each item is done by one of them,
  // whoever is free, and nobody goes on before all are done.
  template <class Work>
  void share(int items, Work work) {
    for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < items;) work(i);
    wait();
  }

  // Nobody goes on before all have come.
  void wait() {
    if (size_ == 1) {
      next_.store(0, std::memory_order_relaxed);
      return;
    }
    int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round;) {
      if (++spins > 20000) sched_yield();  // more threads than free cores
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  const int size_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};
