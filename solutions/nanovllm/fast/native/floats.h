// Products with weights of the build's format.
#pragma once
#include "matrix.h"

// Adds steps `from` .. `until` - 1 of the inner dimension to sums [P, M, PANEL].
template <int M, int P>
INLINE void add_products(const Operand* a, long lda, const Matrix& w, int panel, int from,
                         int until, float* sums, long ld, const char* ahead) {
  vfloat acc[M][2 * P];
  const uint8_t* columns[P];
  for (int p = 0; p < P; ++p) columns[p] = w.bytes() + w.step(panel + p, from);
  auto at = [&](int m, int v) { return sums + v / 2 * ld + m * PANEL + v % 2 * LANES; };
  repeat<M>(EACH(m) { repeat<2 * P>(EACH(v) { acc[m][v] = load<vfloat>(at(m, v)); }); });
  multiply<M, 2 * P, 2>(acc, a + from * PAIR, lda, columns, PANEL * 4, until - from, ahead,
                        ahead ? 0 : reach(M));
  repeat<M>(EACH(m) { repeat<2 * P>(EACH(v) { store(at(m, v), acc[m][v]); }); });
}

__attribute__((noinline)) inline void add_products(const Operand* a, long lda, int rows,
                                                   const Matrix& w, int panel, int count, int from,
                                                   int until, float* sums, long ld,
                                                   const char* ahead) {
  with_rows<MAX_ROWS>(rows, [&](auto rows_of) {
    constexpr int M = decltype(rows_of)::value, P = panels_for(M, 1);
    if (count == P) return add_products<M, P>(a, lda, w, panel, from, until, sums, ld, ahead);
    if constexpr (P > 1)
      for (int p = 0; p < count; ++p)
        add_products<M, 1>(a, lda, w, panel + p, from, until, sums + p * ld, ld, ahead);
  });
}

// Of a matrix of the build's format and rows of floats, what `share_out` (linear.h) wants.
struct FloatProduct {
  const Operand* a;
  long lda;
  const Matrix& w;

  static constexpr int most = MAX_ROWS;
  static constexpr int together(int rows) { return panels_for(rows, 1); }
  long row_bytes() const { return lda * sizeof(Operand); }
  int parts() const { return w.steps(); }
  int at_once() const { return 256 / PAIR; }
  int steps(int from, int until) const { return until - from; }
  const void* part(int panel, int step) const { return w.bytes() + w.step(panel, step); }
  void begin(int panel, float* sums) const {
    for (int i = 0; i < PANEL; ++i) sums[i] = w.bias ? w.bias[panel * PANEL + i] : 0.0f;
  }
  void add(int row, int rows, int panel, int count, int from, int until, float* sums, long ld,
           const char* ahead) const {
    add_products(a + row * lda, lda, rows, w, panel, count, from, until, sums, ld, ahead);
  }
  void end(int, int, float*) const {}
};
