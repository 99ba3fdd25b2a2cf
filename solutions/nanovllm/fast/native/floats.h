// Products with weights of the build's format.
#pragma once
#include "matrix.h"
#include "tiles.h"

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

#if NV_TILES
constexpr int SIDE = PANEL / TILE;  // tiles of a panel

// The same in steps of whole tiles, for up to R * TILE rows and P panels.
template <int R, int P>
INLINE void add_tiles(const Operand* a, long lda, int rows, const Matrix& w, int panel, int from,
                      int until, float* sums, long ld, int far) {
  const uint8_t* columns[P * SIDE];
  for (int v = 0; v < P * SIDE; ++v)
    columns[v] = w.bytes() + w.step(panel + v / SIDE, from) + v % SIDE * 64;
  auto at = [&](int r, int v) {
    return sums + v / SIDE * ld + r * TILE * PANEL + v % SIDE * TILE;
  };
  shape_tiles<R>(rows, TILE);
  multiply_tiles<R, P * SIDE>(
      a + from * PAIR, lda, [&](int s, int v) { return columns[v] + long(s) * TILE * PANEL * 4; },
      PANEL * 4, (until - from) / TILE, TILE, far,
      [&](auto c, int r, int v) { load_tile<c>(at(r, v), PANEL * 4); },
      [&](auto c, int r, int v) { store_tile<c>(at(r, v), PANEL * 4); });
}

// What is left of the inner dimension behind the last whole tile is added as it is without tiles:
// so a row has the same sums beside whatever others it passes by.
inline void add_by_tiles(const Operand* a, long lda, int rows, const Matrix& w, int panel,
                         int count, int from, int until, float* sums, long ld,
                         int far) {
  const int whole = from + (until - from) / TILE * TILE;
  const int most = (rows <= TILE ? 4 : 2) / SIDE, panels = count == most ? most : 1;
  auto one = rows > TILE     ? panels > 1 ? add_tiles<2, 2 / SIDE> : add_tiles<2, 1>
             : panels > 1    ? add_tiles<1, 4 / SIDE>
                             : add_tiles<1, 1>;
  for (int p = 0; p < count; p += panels)
    one(a, lda, rows, w, panel + p, from, whole, sums + p * ld, ld, far);
  for (int m = 0; whole < until && m < rows; m += MAX_ROWS)
    for (int p = 0; p < count; ++p)
      add_products(a + m * lda, lda, std::min(MAX_ROWS, rows - m), w, panel + p, 1, whole, until,
                   sums + p * ld + m * PANEL, ld, nullptr);
}
#endif

// Of a matrix of the build's format and rows of floats, what `share_out` (linear.h) wants.
struct FloatProduct {
  const Operand* a;
  long lda;
  const Matrix& w;

#if NV_TILES
  static constexpr int most = 2 * TILE;
  static constexpr int together(int rows) { return (rows <= TILE ? 4 : 2) / SIDE; }
#else
  static constexpr int most = MAX_ROWS;
  static constexpr int together(int rows) { return panels_for(rows, 1); }
#endif
  long row_bytes() const { return lda * sizeof(Operand); }
  int parts() const { return w.steps(); }
  int at_once() const { return (NV_TILES ? 1024 : 256) / PAIR; }
  int steps(int from, int until) const { return until - from; }
  const void* part(int panel, int step) const { return w.bytes() + w.step(panel, step); }
  void begin(int panel, float* sums) const {
    for (int i = 0; i < PANEL; ++i) sums[i] = w.bias ? w.bias[panel * PANEL + i] : 0.0f;
  }
  void add(int row, int rows, int panel, int count, int from, int until, float* sums, long ld,
           const char* ahead) const {
#if NV_TILES
    add_by_tiles(a + row * lda, lda, rows, w, panel, count, from, until, sums, ld,
                 ahead ? 0 : reach(1));
#else
    add_products(a + row * lda, lda, rows, w, panel, count, from, until, sums, ld, ahead);
#endif
  }
  void end(int, int, float*) const {}
};
