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
constexpr int SIDE = PANEL / TILE;                       // tiles of a panel
constexpr int PANEL_LINES = TILE * PANEL * 4 / LINE;     // and its lines, in a step of whole tiles
constexpr int panels_of_tiles(int r) { return 4 / r / SIDE; }

// The same in steps of whole tiles, for up to R * TILE rows and P panels; here the sums begin.
template <int R, int P>
INLINE void add_tiles(const Operand* a, long lda, int rows, const Matrix& w, int panel, int steps,
                      float* sums, long ld, Ahead ahead) {
  const uint8_t* columns[P * SIDE];
  for (int v = 0; v < P * SIDE; ++v)
    columns[v] = w.bytes() + w.step(panel + v / SIDE, 0) + v % SIDE * 64;
  auto at = [&](int r, int v) {
    return sums + v / SIDE * ld + r * TILE * PANEL + v % SIDE * TILE;
  };
  shape_tiles<R>(rows, TILE);
  auto product = [&](auto ask) __attribute__((always_inline)) {
    multiply_tiles<R, P * SIDE>(
        a, lda, [&](int s, int v) { return columns[v] + long(s) * TILE * PANEL * 4; }, PANEL * 4,
        steps, TILE, ask, [&](auto c, int, int) { clear_tile<c>(); },
        [&](auto c, int r, int v) { store_tile<c>(at(r, v), PANEL * 4); });
  };
  if (ahead.from)
    product([&](int s, int v) __attribute__((always_inline)) {
      const char* from = ahead.from + long(s) * ahead.lines * LINE;
      for (int i = 0; v == 0 && i < ahead.lines; ++i) __builtin_prefetch(from + i * LINE, 0, 2);
    });
  else
    product([&](int s, int v) __attribute__((always_inline)) {
      const uint8_t* from = columns[v] + reach(1) + long(s) * TILE * PANEL * 4;
      for (int i = 0; i < TILE; ++i) __builtin_prefetch(from + i * PANEL * 4);
    });
}

// What is left of the inner dimension behind the last whole tile is added as it is without tiles:
// so a row has the same sums beside whatever others it passes by.
inline void add_by_tiles(const Operand* a, long lda, int rows, const Matrix& w, int panel,
                         int count, float* sums, long ld, Ahead ahead) {
  const int steps = w.steps() / TILE, whole = steps * TILE;
  auto add = [&](auto R) {
    constexpr int P = panels_of_tiles(R);
    if (count == P) return add_tiles<R, P>(a, lda, rows, w, panel, steps, sums, ld, ahead);
    for (int p = 0; p < count; ++p)
      add_tiles<R, 1>(a, lda, rows, w, panel + p, steps, sums + p * ld, ld, ahead);
  };
  if (rows > TILE) add(std::integral_constant<int, 2>{});
  else add(std::integral_constant<int, 1>{});
  for (int m = 0; whole < w.steps() && m < rows; m += MAX_ROWS)
    for (int p = 0; p < count; ++p)
      add_products(a + m * lda, lda, std::min(MAX_ROWS, rows - m), w, panel + p, 1, whole,
                   w.steps(), sums + p * ld + m * PANEL, ld, nullptr);
}
#endif

// Of a matrix of the build's format and rows of Operand, what `share_out` (linear.h) wants.
struct FloatProduct {
  const Operand* a;
  long lda;
  const Matrix& w;

#if NV_TILES
  static constexpr int most = 2 * TILE;
  static constexpr int together(int rows) { return panels_of_tiles(rows <= TILE ? 1 : 2); }
  int at_once() const { return parts(); }
  int steps(int from, int until) const { return (until - from) / TILE; }
  static int lines(int blocks) { return (PANEL_LINES + blocks - 1) / blocks; }
#else
  static constexpr int most = MAX_ROWS;
  static constexpr int together(int rows) { return panels_for(rows, 1); }
  int at_once() const { return 256 / PAIR; }
  int steps(int from, int until) const { return until - from; }
  static int lines(int) { return 1; }
#endif
  long row_bytes() const { return lda * sizeof(Operand); }
  int parts() const { return w.steps(); }
  const void* part(int panel, int step) const { return w.bytes() + w.step(panel, step); }
  void begin(float* sums) const {
    if (!NV_TILES) std::fill_n(sums, PANEL, 0.0f);
  }
  void add(int row, int rows, int panel, int count, int from, int until, float* sums, long ld,
           Ahead ahead) const {
#if NV_TILES
    add_by_tiles(a + row * lda, lda, rows, w, panel, count, sums, ld, ahead);
#else
    add_products(a + row * lda, lda, rows, w, panel, count, from, until, sums, ld, ahead.from);
#endif
  }
  void end(int, int panel, float* sums) const {
    for (int i = 0; w.bias && i < PANEL; ++i) sums[i] += w.bias[panel * PANEL + i];
  }
};
