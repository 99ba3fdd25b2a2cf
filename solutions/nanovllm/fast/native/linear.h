// y = a w^T + bias for a packed weight matrix, shared out by columns.
#pragma once
#include "codes.h"
#include "floats.h"
#include "team.h"

constexpr int SLAB = NV_TILES ? 256 : 96;  // rows that pass by a panel together
// Bytes of them that stay in the second-level cache.
constexpr int NEAR = (NV_TILES ? 1024 : 640) * 1024;

// While the rows of a block pass by one chunk of a panel, the next chunk comes from memory: some
// lines with each step. Behind the last chunk comes the panel after the next one: another thread,
// if there is one, is working on that.
template <class Product>
Ahead next_chunk(const Product& product, int panel, int from, int steps, int block, int blocks) {
  if (blocks == 1) return {};
  if (from >= product.parts()) panel += 2, from = 0;
  if (panel >= product.w.panels()) return {};
  const int until = std::min(from + product.at_once(), product.parts());
  const int lines = Product::TILES ? (PANEL_LINES + blocks - 1) / blocks : 1;
  const uint8_t* begin = product.part(panel, from) + long(block) * steps * lines * LINE;
  if (begin >= product.part(panel, until)) return {};
  return {begin, lines};
}

// Rows of a product that pass by together: as many as stay in the second-level cache.
template <class Product>
int slab(const Product& product) {
  return std::clamp<long>(NEAR / product.row_bytes(), Product::most, SLAB);
}

// For some panels and up to SLAB rows: finish(row, first column, PANEL sums). A product is cut into
// parts along its inner dimension, and `at_once` of them stay in a near cache; up to `most` rows
// are worked on at a time. Where that is all parts, a block of rows is finished before the next one
// begins, while its sums are near.
template <class Product, class Finish>
void multiply_slab(const Product& product, int first, int count, int panel, int panels,
                   Finish finish) {
  const int blocks = (count + Product::most - 1) / Product::most;
  const int chunk = blocks > 1 ? product.at_once() : product.parts();
  const int turns = chunk < product.parts() ? 1 : blocks, each = blocks / turns;  // blocks a turn
  alignas(64) float sums[SLAB * std::max(PANEL, 2 * TILE)];  // two panels may be half as wide
  auto row_of = [&](int block) { return count * block / blocks; };
  for (int turn = 0; turn < turns; ++turn) {
    const int begin = row_of(turn * each), end = row_of((turn + 1) * each);
    const long ld = long(end - begin) * PANEL;
    if (Product::ADDS) std::fill_n(sums, panels * ld, 0.0f);
    for (int from = 0; from < product.parts(); from += chunk) {
      const int until = std::min(from + chunk, product.parts()), steps = product.steps(from, until);
      for (int block = turn * each; block < (turn + 1) * each; ++block) {
        const int row = row_of(block);
        product.add({first + row, row_of(block + 1) - row, panel, panels, from, until,
                     sums + (row - begin) * PANEL, ld,
                     next_chunk(product, panel, until, steps, block, blocks)});
      }
    }
    for (int p = 0; p < panels; ++p)
      for (int m = begin; m < end; ++m) {
        float* at = sums + p * ld + (m - begin) * PANEL;
        product.end(first + m, panel + p, at);
        finish(first + m, (panel + p) * PANEL, at);
      }
  }
}

// For every panel and row, shared out; up to `together` panels are worked on at a time.
template <class Product, class Finish>
void share_out(Walk& walk, const Product& product, int rows, Finish finish) {
  const int slabs = (rows + slab(product) - 1) / slab(product);
  const int together = Product::together(rows), all = product.w.panels();
  const int groups = (all + together - 1) / together;
  walk.share(slabs * groups, [&](int item) {
    const int first = long(rows) * (item / groups) / slabs;
    const int until = long(rows) * (item / groups + 1) / slabs;
    const int panel = item % groups * together;
    multiply_slab(product, first, until - first, panel, std::min(together, all - panel), finish);
  });
}

// The same for `count` matrices, every second one from the first one on: matrix e takes the rows
// starts[e] .. starts[e + 1], which are not known when a step begins. finish(e, row, ...).
template <class Finish>
void linear_by_expert(Walk& walk, const Rows<Operand>& a, const Matrix* matrices, int count,
                      const int32_t* starts, Finish finish) {
  constexpr int together = panels_for(1, 1);
  int most = 0;
  for (int e = 0; e < count; ++e) most = std::max(most, matrices[2 * e].panels());
  const int groups = (most + together - 1) / together;
  walk.share(count * groups, [&](int item) {
    const int e = item / groups, until = starts[e + 1], begin = item % groups * together;
    const FloatProduct product{a, matrices[2 * e]};
    const int end = std::min(begin + together, product.w.panels());
    for (int row = starts[e], taken; row < until; row += taken) {
      taken = std::min(slab(product), until - row);
      const int panels = FloatProduct::together(taken);
      for (int panel = begin; panel < end; panel += panels)
        multiply_slab(product, row, taken, panel, std::min(panels, end - panel),
                      [&](int m, int c, const float* sums) { finish(e, m, c, sums); });
    }
  });
}

// The same for a left side of Operand; with codes, its rows become digits first.
template <class Finish>
void linear(Walk& walk, DigitRoom& room, const Rows<Operand>& a, int rows, const Matrix& w,
            Finish finish) {
  if (w.bits == 0) return share_out(walk, FloatProduct{a, w}, rows, finish);
  const int digits = w.by_row ? 1 : DIGITS, most = w.by_row ? 127 : largest(digits);
  walk.share(rows, [&](int t) { room.fill(t, a[t], w.inner, digits, most, w.block); });
  if (w.by_row) share_out(walk, CodeProduct<8, 1, true>{room, w}, rows, finish);
  else if (w.bits == 8) share_out(walk, CodeProduct<8, DIGITS, false>{room, w}, rows, finish);
  else share_out(walk, CodeProduct<4, DIGITS, false>{room, w}, rows, finish);
}
