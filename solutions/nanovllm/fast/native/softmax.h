// Softmax over the keys that a query may see.
#pragma once
#include <algorithm>

#include "vectors.h"

// Turns one row of scores into weights: zero outside low .. high - 1; returns 1 / their sum.
inline float soften(float* row, int low, int high, int width) {
  const vfloat infinite = -INFINITY - vfloat{};
  for (int i = 0; i < low; ++i) row[i] = -INFINITY;
  for (int i = high; i < width; ++i) row[i] = -INFINITY;
  const int start = low / LANES * LANES, stop = (high + LANES - 1) / LANES * LANES;
  vfloat top = infinite;
  for (int i = start; i < stop; i += LANES) {
    vfloat x = load<vfloat>(row + i);
    top = x > top ? x : top;
  }
  float most = top[0];
  for (int i = 1; i < LANES; ++i) most = std::max(most, top[i]);
  vfloat total{};
  for (int i = 0; i < start; i += LANES) store(row + i, vfloat{});
  for (int i = start; i < stop; i += LANES) {
    vfloat x = load<vfloat>(row + i);
    vfloat y = exp(x - most);
    y = x == infinite ? vfloat{} : y;
    store(row + i, y);
    total += y;
  }
  for (int i = stop; i < width; i += LANES) store(row + i, vfloat{});
  float sum = 0;
  for (int i = 0; i < LANES; ++i) sum += total[i];
  return 1.0f / sum;
}
