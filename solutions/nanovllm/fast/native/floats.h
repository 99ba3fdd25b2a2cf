// Products with weights of the build's format.
#pragma once
#include "matrix.h"
#include "tiles.h"

constexpr int SIDE = std::max(1, PANEL / TILE);  // tiles of a panel
constexpr int panels_of_tiles(int r) { return 4 / r / SIDE; }

// Of a matrix of the build's format and rows of Operand, what `share_out` (linear.h) wants.
struct FloatProduct {
  const Rows<Operand>& left;
  const Matrix& w;

  static constexpr bool TILES = NV_TILES;
  static constexpr bool ADDS = !TILES;  // to sums that are there
  static constexpr int most = TILES ? 2 * TILE : MAX_ROWS;
  static constexpr int digits(int) { return 1; }
  static constexpr int together(int rows) {
    return TILES ? panels_of_tiles(rows <= TILE ? 1 : 2) : panels_for(rows, 1);
  }
  long row_bytes() const { return left.ld * sizeof(Operand); }
  int parts() const { return w.steps(); }
  int at_once() const { return TILES ? parts() : 256 / PAIR; }
  int steps(int from, int until) const { return (until - from) / (TILES ? TILE : 1); }
  const uint8_t* part(int panel, int step) const { return w.data + w.step(panel, step); }
  void end(int, int panel, float* sums) const {
    for (int i = 0; w.bias && i < PANEL; ++i) sums[i] += w.bias[panel * PANEL + i];
  }

  template <int M, int P>
  INLINE void add(const Part& part) const {
    vfloat acc[M][2 * P];
    const uint8_t* columns[P];
    for (int p = 0; p < P; ++p) columns[p] = w.data + w.step(part.panel + p, part.from);
    repeat<M, 2 * P>(EACH(m, auto v) { acc[m][v] = load<vfloat>(part.at(m, v)); });
    multiply(acc, left[part.row] + part.from * PAIR, left.ld, columns, PANEL * 4,
             part.until - part.from, part.ahead);
    repeat<M, 2 * P>(EACH(m, auto v) { store(part.at(m, v), acc[m][v]); });
  }

  // In steps of whole tiles, for up to R * TILE rows; here the sums begin.
  template <int R, int P>
  INLINE void add_tiles(const Part& part) const {
    const long lda = left.ld * sizeof(Operand);
    shape_tiles<R>(part.rows, TILE);
    multiply_panels<R, P * SIDE, false>(
        left[part.row], TILE * lda, lda,
        [&](int v) { return w.data + w.step(part.panel + v / SIDE, 0) + v % SIDE * 64; },
        w.steps() / TILE, part.ahead, [&](auto c, int, int) { clear_tile<c>(); },
        [&](auto c, int r, int v) {
          float* to = part.sums + v / SIDE * part.ld + r * TILE * PANEL + v % SIDE * TILE;
          store_tile<c>(to, PANEL * 4);
        });
  }

  // What is left of the inner dimension behind the last whole tile is added as it is without tiles:
  // so a row has the same sums beside whatever others it passes by.
  void add(const Part& part) const {
    if (!TILES) return add_rows<MAX_ROWS>(*this, part);
    auto by_tiles = [&](auto R) {
      constexpr int P = panels_of_tiles(R);
      if (part.panels == P) return add_tiles<R, P>(part);
      for (int p = 0; p < part.panels; ++p) add_tiles<R, 1>(part.only(p));
    };
    if (part.rows > TILE) by_tiles(Int<2>{});
    else by_tiles(Int<1>{});
    const int whole = w.steps() / TILE * TILE;
    for (int m = 0; whole < w.steps() && m < part.rows; m += MAX_ROWS) {
      Part rest = part.some(m, MAX_ROWS);
      rest.from = whole, rest.ahead = {};
      add_rows<MAX_ROWS>(*this, rest);
    }
  }
};
