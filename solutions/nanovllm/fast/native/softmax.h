// Softmax over the keys that a query may see, some of them at a time.
#pragma once
#include <algorithm>

#include "vectors.h"

// One row: its largest score so far, and the sum of 2^(scale * (score - largest)).
struct Softmax {
  float most = -INFINITY, total = 0;

  // Turns the next scores into weights, zero outside low .. high - 1; they may take the scores'
  // place. Returns what all weights before must be multiplied with.
  template <class T>
  float add(float* row, int low, int high, int width, float scale, T* weights) {
    const int start = low / LANES * LANES;
    const int stop = std::max(start, (high + LANES - 1) / LANES * LANES);
    const float before = most;
    std::fill(row + start, row + low, -INFINITY);
    std::fill(row + high, row + stop, -INFINITY);
    vfloat top = most - vfloat{}, sums{};
    for (int i = start; i < stop; i += LANES) top = larger(load<vfloat>(row + i), top);
    most = largest_of(top);
    const float shift = most * scale;
    for (int i = start; i < stop; i += LANES) {
      const vfloat y = exp2(load<vfloat>(row + i) * scale - shift);
      narrow(y, weights + i);
      sums += y;
    }
    std::fill(weights, weights + start, T());
    std::fill(weights + stop, weights + width, T());
    const float again = before == most ? 1.0f : std::exp2(before * scale - shift);
    total = total * again + sum_of(sums);
    return again;
  }
};
