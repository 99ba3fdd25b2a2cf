// A packed weight matrix [N, K].
#pragma once
#include "digits.h"

constexpr int PANEL = 2 * LANES;  // columns that are packed together
inline long padded(long size) { return (size + PANEL - 1) / PANEL * PANEL; }  // filled up

// In panels of PANEL columns, N filled up with zeros: [K / PAIR][PANEL][PAIR] of Stored. Or, where
// `bits` is 4 or 8, codes that stand for (code - zero) * scale: the K of each `block` go on in
// steps [PANEL] of 4 bytes, with 8 bits the codes of 4 k, with 4 bits those of 8, the second 4 in
// the high halves; behind a block come its scales [PANEL] (float). Its zeros are `middle`, or, if
// that is negative, the low byte of each scale. If `by_row`, a column has one scale, in `scales`,
// and none stand behind the blocks; then a row is multiplied as codes of 8 bits, too.
struct Matrix {
  const uint8_t* data;
  const float* bias;    // [N padded], or null
  const float* scales;  // [N padded], if by_row
  int32_t columns, inner, bits, block, middle, by_row;

  int panels() const { return (columns + PANEL - 1) / PANEL; }

  // Of Stored: where a step of a panel is.
  int steps() const { return (inner + PAIR - 1) / PAIR; }
  long step(int panel, int s) const { return (long(panel) * steps() + s) * PANEL * 4; }

  // Of codes.
  int blocks() const { return (inner + block - 1) / block; }
  int per_step() const { return 32 / bits; }
  int block_steps(int from, int until) const {
    return (std::min(until * block, inner) - from * block + per_step() - 1) / per_step();
  }
  // Where a block of a panel begins; the one behind the last is the next panel.
  long offset(int panel, int b) const {
    const long tail = block_steps(blocks() - 1, blocks()), marks = !by_row;
    const long whole = block / per_step();
    const long one = (blocks() - 1) * (whole + marks) + tail + marks;
    const long before = b < blocks() ? b * (whole + marks) : one;
    return (panel * one + before) * PANEL * 4;
  }
};

// Rows and panels that are worked on together: enough sums at a time to hide the latency of an
// addition, and not more than there are registers.
constexpr int rows_at_once(int digits) { return std::max(1, MAX_ROWS / digits); }
constexpr int panels_for(int rows, int digits) {
  if (LANES < 16) return 1;
  return rows == 1 && digits <= 2 ? 4 : rows * digits <= 5 ? 2 : 1;
}

// What is multiplied in one go: some rows with some panels, steps (or blocks) `from` .. `until` - 1
// of the inner dimension, for sums [panels, rows, PANEL], those of a panel `ld` from the next.
struct Part {
  int row, rows, panel, panels, from, until;
  float* sums;
  long ld;
  Ahead ahead;

  float* at(int m, int v) const { return sums + v / 2 * ld + m * PANEL + v % 2 * LANES; }
  Part only(int p) const {
    return {row, rows, panel + p, 1, from, until, sums + p * ld, ld, ahead};
  }
  Part some(int m, int most) const {
    const int count = std::min(most, rows - m);
    return {row + m, count, panel, panels, from, until, sums + m * PANEL, ld, ahead};
  }
};

// The product's add<M, P>, rows and panels being constants; where fewer panels are left than go
// together, one after another.
template <int MOST, class Product>
__attribute__((noinline)) void add_rows(const Product& product, const Part& part) {
  with_rows<MOST>(part.rows, [&](auto rows) {
    constexpr int M = decltype(rows)::value, P = panels_for(M, Product::digits(M));
    if (part.panels == P) return product.template add<M, P>(part);
    for (int p = 0; p < part.panels; ++p) product.template add<M, 1>(part.only(p));
  });
}
