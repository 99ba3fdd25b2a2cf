// Softmax over the keys that a query may see, some of them at a time.
#pragma once
#include <algorithm>

#include "vectors.h"

// One row: its largest score so far, and the sum of e^(scale * (score - largest)).
struct Softmax {
  float most = -INFINITY, total = 0;

  // Turns the next scores into weights, zero outside low .. high - 1. Returns what all weights
  // before must be multiplied with.
  float add(float* row, int low, int high, int width, float scale) {
    const vfloat infinite = -INFINITY - vfloat{};
    for (int i = 0; i < low; ++i) row[i] = -INFINITY;
    for (int i = high; i < width; ++i) row[i] = -INFINITY;
    const int start = low / LANES * LANES, stop = (high + LANES - 1) / LANES * LANES;
    vfloat top = infinite;
    for (int i = start; i < stop; i += LANES) {
      vfloat x = load<vfloat>(row + i);
      top = x > top ? x : top;
    }
    const float before = most;
    for (int i = 0; i < LANES; ++i) most = std::max(most, top[i]);
    vfloat sums{};
    for (int i = 0; i < start; i += LANES) store(row + i, vfloat{});
    for (int i = start; i < stop; i += LANES) {
      vfloat x = load<vfloat>(row + i);
      vfloat y = exp((x - most) * scale);
      y = x == infinite ? vfloat{} : y;
      store(row + i, y);
      sums += y;
    }
    for (int i = std::max(start, stop); i < width; i += LANES) store(row + i, vfloat{});
    const float again = before == most ? 1.0f : std::exp((before - most) * scale);
    total *= again;
    for (int i = 0; i < LANES; ++i) total += sums[i];
    return again;
  }
};
