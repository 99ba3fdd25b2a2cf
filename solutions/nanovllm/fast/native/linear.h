// y = a w^T + bias for a packed weight matrix, shared out by columns.
#pragma once
#include <algorithm>

#include "product.h"
#include "team.h"

constexpr int PANEL = 2 * LANES;  // columns that are packed together

// w [N, K] packed as [N / PANEL][K / PAIR][PANEL][PAIR], N and K padded with zeros.
struct Matrix {
  const Stored* data;
  const float* bias;  // [N padded], or null
  int32_t columns, inner;

  int panels() const { return (columns + PANEL - 1) / PANEL; }
  int steps() const { return (inner + PAIR - 1) / PAIR; }
  long panel_size() const { return long(steps()) * PAIR * PANEL; }
};

// Panels that are worked on together: enough sums at a time to hide the latency of an addition,
// and not more than there are registers.
constexpr int panels_for(int rows) { return LANES < 16 ? 1 : rows == 1 ? 4 : rows <= 5 ? 2 : 1; }

// Adds steps `from` .. `until` - 1 of the inner dimension to sums [P, M, PANEL].
template <int M, int P>
INLINE void add_products(const Operand* a, long lda, const Matrix& w, int panel, int from,
                         int until, float* sums, long ld, const char* ahead) {
  vfloat acc[M][2 * P];
  const Stored* columns[P];
  for (int p = 0; p < P; ++p)
    columns[p] = w.data + (panel + p) * w.panel_size() + long(from) * PANEL * PAIR;
  auto at = [&](int m, int v) { return sums + v / 2 * ld + m * PANEL + v % 2 * LANES; };
  repeat<M>(EACH(m) { repeat<2 * P>(EACH(v) { acc[m][v] = load<vfloat>(at(m, v)); }); });
  multiply<M, 2 * P, 2>(acc, a + from * PAIR, lda, columns, PANEL * PAIR, until - from, ahead);
  repeat<M>(EACH(m) { repeat<2 * P>(EACH(v) { store(at(m, v), acc[m][v]); }); });
}

__attribute__((noinline)) inline void add_products(const Operand* a, long lda, int rows,
                                                   const Matrix& w, int panel, int count, int from,
                                                   int until, float* sums, long ld,
                                                   const char* ahead) {
  with_rows(rows, [&](auto rows_of) {
    constexpr int M = decltype(rows_of)::value, P = panels_for(M);
    if (count == P) return add_products<M, P>(a, lda, w, panel, from, until, sums, ld, ahead);
    if constexpr (P > 1)
      for (int p = 0; p < count; ++p)
        add_products<M, 1>(a, lda, w, panel + p, from, until, sums + p * ld, ld, ahead);
  });
}

constexpr int SLAB = 96;           // rows that pass by a panel together
constexpr int NEAR = 640 * 1024;   // bytes of them that stay in the second-level cache
constexpr int CHUNK = 256 / PAIR;  // steps whose part of a panel stays in the first-level cache

// While the rows of a block pass by one part of a panel, the next part comes from memory: a line with
// each step, and so all of its lines with the first blocks. Behind the last part comes the panel
// after the next one, which another thread is working on by now.
inline const char* next_part(const Matrix& w, int panel, int from, int block) {
  constexpr int LINES = PANEL * PAIR * sizeof(Stored) / LINE;  // of one step
  if (block >= LINES) return nullptr;
  if (from >= w.steps()) panel += 2, from = 0;
  if (panel >= w.panels()) return nullptr;
  const int count = std::min(CHUNK, w.steps() - from);
  const Stored* part = w.data + panel * w.panel_size() + long(from) * PANEL * PAIR;
  return reinterpret_cast<const char*>(part) + long(block) * count * LINE;
}

// For every panel and row: finish(row, first column, PANEL sums). `a` is [rows, lda].
template <class Finish>
void linear(Walk& walk, const Operand* a, long lda, int rows, const Matrix& w, Finish finish) {
  const int fitting = std::clamp<long>(NEAR / (lda * sizeof(Operand)), MAX_ROWS, SLAB);
  const int slabs = (rows + fitting - 1) / fitting;
  const int together = panels_for(rows);
  const int groups = (w.panels() + together - 1) / together;
  walk.share(slabs * groups, [&](int item) {
    const int first = long(rows) * (item / groups) / slabs;
    const int count = long(rows) * (item / groups + 1) / slabs - first;
    const int panel = item % groups * together, panels = std::min(together, w.panels() - panel);
    const int blocks = (count + MAX_ROWS - 1) / MAX_ROWS;
    const int chunk = blocks > 1 ? CHUNK : w.steps();
    const long ld = long(count) * PANEL;
    alignas(64) float sums[SLAB * PANEL];
    for (int p = 0; p < panels; ++p)
      for (int m = 0; m < count; ++m)
        for (int i = 0; i < PANEL; ++i)
          sums[p * ld + m * PANEL + i] = w.bias ? w.bias[(panel + p) * PANEL + i] : 0.0f;
    for (int from = 0; from < w.steps(); from += chunk)
      for (int block = 0; block < blocks; ++block) {
        const int row = count * block / blocks, taken = count * (block + 1) / blocks - row;
        add_products(a + (first + row) * lda, lda, taken, w, panel, panels, from,
                     std::min(from + chunk, w.steps()), sums + row * PANEL, ld,
                     blocks > 1 ? next_part(w, panel, from + chunk, block) : nullptr);
      }
    for (int p = 0; p < panels; ++p)
      for (int m = 0; m < count; ++m)
        finish(first + m, (panel + p) * PANEL, sums + p * ld + m * PANEL);
  });
}
