// Products of rows of digits with codes of 4 or 8 bits.
#pragma once
#include "tiles.h"

// The rows of a step as digits, and what they have to be multiplied with in the end. Kept from step
// to step.
struct DigitRoom {
  Rows<Digit> digits;         // [T, digits, ...]
  std::vector<float> scales;  // [T]
  std::vector<float> sums;    // [T, blocks]: of each block of a row's numbers

  // Before a step: for so many rows of up to so many values, which end `apart` values before the
  // next ones.
  void fit(long rows, long longest, long apart) {
    digits.fit(rows * DIGITS, (longest + LANES - 1) / LANES * LANES + apart);
    scales.resize(rows);
    sums.resize(rows * (longest / 8 + 1));
  }

  void fill(long t, const Operand* x, int count, int each, int most, int block) {
    scales[t] = to_digits(x, count, each, most, block, digits[t * each], digits.ld,
                          &sums[t * ((count + block - 1) / block)]);
  }
};

// As `multiply` of values, a step being 4 or 8 codes.
template <int BITS = 8, int M, int V, int C, class D>
INLINE void multiply(vint (&acc)[M][V], const D* a, long lda, const uint8_t* const (&w)[C],
                     long stride, int steps, Ahead ahead = NOTHING) {
  constexpr int J = V / C;
  walk_steps<M>(a, lda, 32 / BITS, w, stride, steps, ahead, EACH(row, auto& columns) {
    vint codes[V];
    repeat<V>(EACH(v) { codes[v] = pinned(load<vint>(columns[v / J] + v % J * LANES * 4)); });
    repeat<8 / BITS>(EACH(i) {
      vint each[V];
      repeat<V>(EACH(v) { each[v] = BITS == 8 ? codes[v] : codes[v] >> 4 * i & 0x0f0f0f0f; });
      repeat<M, V>(EACH(m, auto v) { acc[m][v] = dot4(acc[m][v], row(m) + 4 * i, each[v]); });
    });
  });
}

constexpr long NEAREST = 16 * 1024;  // bytes of a panel that stay in the first-level cache

// Of a matrix of codes and rows of digits, what `share_out` (linear.h) wants: the bits of a code,
// the digits of a value; BY_ROW as in Matrix.
template <int BITS, int D, bool BY_ROW>
struct CodeProduct {
  const DigitRoom& left;
  const Matrix& w;

  // Whether the sum of a block of up to 512 has room in 32 bits. Then several rows take one digit
  // after the other, and less is left to do behind a block; one row takes all at once, and reads
  // the codes once. The sums are the same.
  static constexpr bool WHOLE = D * DIGIT_BITS - 1 + BITS + 9 <= 31;
  static constexpr int digits(int rows) { return WHOLE && rows > 1 ? 1 : D; }
  // By tiles: of rows, or one for each digit of the same rows; a panel is two of them.
  static constexpr bool TILES = NV_TILES && NV_BYTE_DOT && PANEL == 2 * TILE && BITS == 8 &&
                                D == (BY_ROW ? 1 : 2);
  static constexpr bool ADDS = true;
  static constexpr int VECTOR_ROWS = rows_at_once(WHOLE ? 1 : D), FEW = 4;
  static constexpr int most = TILES ? 2 * TILE / D : VECTOR_ROWS;
  static constexpr int together(int rows) {
    return TILES && rows > FEW ? 1 : panels_for(rows, digits(rows));
  }
  long row_bytes() const { return left.digits.ld * D * sizeof(Digit); }
  int parts() const { return w.blocks(); }
  int at_once() const {
    if (TILES) return parts();
    const int most = std::max<long>(1, NEAREST / w.offset(0, 1)), blocks = w.blocks();
    return (blocks + (blocks - 1) / most) / ((blocks - 1) / most + 1);  // chunks alike
  }
  int steps(int from, int until) const { return w.block_steps(from, until) / (TILES ? TILE : 1); }
  const uint8_t* part(int panel, int b) const { return w.data + w.offset(panel, b); }
  void add(const Part& part) const {
    if constexpr (TILES)
      if (part.rows > FEW && w.block % 64 == 0 && w.inner % 64 == 0)
        return BY_ROW && part.rows <= TILE ? add_tiles<1>(part) : add_tiles<2>(part);
    for (int m = 0; m < part.rows; m += VECTOR_ROWS)
      add_rows<VECTOR_ROWS>(*this, part.some(m, VECTOR_ROWS));
  }

  // As `add`, of one panel: the sums are the same.
  template <int R>
  void add_tiles(const Part& part) const {
    const long ld = left.digits.ld;
    const Digit* a = left.digits[part.row * D] + long(part.from) * w.block;
    const uint8_t* panel = w.data + w.offset(part.panel, part.from);
    const float* numbers = &left.sums[part.row * long(w.blocks()) + part.from];
    alignas(LINE) int32_t whole[D][TILE * PANEL];
    int32_t* to = BY_ROW ? reinterpret_cast<int32_t*>(part.sums) : whole[0];
    auto at = [=](int r, int v) { return to + r * TILE * PANEL + v * TILE; };
    Ahead ahead = part.ahead;
    shape_tiles<R>(part.rows, TILE, D == 2);
    for (int b = part.from, end; b < part.until; b = end, a += w.block, ++numbers) {
      end = BY_ROW ? part.until : b + 1;
      const int steps = w.block_steps(b, end);
      multiply_panels<R, 2, true>(
          a, D == 2 ? ld : TILE * ld, D * ld, [=](int v) { return panel + v * 64; }, steps / TILE,
          ahead,
          [=](auto c, int r, int v) {
            if constexpr (BY_ROW) load_tile<c>(at(r, v), PANEL * 4);
            else clear_tile<c>();
          },
          [=](auto c, int r, int v) { store_tile<c>(at(r, v), PANEL * 4); });
      if (ahead.from) ahead.from += long(steps / TILE) * ahead.lines * LINE;
      panel += long(steps) * PANEL * 4;
      for (int m = 0; !BY_ROW && m < part.rows; ++m) {
        vint acc[D][2];
        repeat<D, 2>(EACH(d, auto v) { acc[d][v] = load<vint>(&whole[d][m * PANEL + v * LANES]); });
        repeat<2>(EACH(v) {
          scale_and_add<D>(acc, Int<0>{}, v, panel, numbers[m * w.blocks()], part.at(m, v));
        });
      }
      panel += PANEL * 4;
    }
  }

  // What a block's digits make up, minus its zero times the sum of the row's numbers there, times
  // the scale that stands behind the block (at `marks`), is added to the sums.
  template <int EACH_ROW, int N, int V, class Row, class Column>
  INLINE void scale_and_add(const vint (&acc)[N][V], Row m, Column v, const uint8_t* marks,
                            float number, float* sums) const {
    const vint both = load<vint>(marks + v % 2 * LANES * 4);
    const bool apart = w.middle < 0;
    const vfloat zero = apart ? to_floats(both & 255) : float(w.middle) - vfloat{};
    const vfloat scale = (vfloat)(apart ? both & ~255 : both);
    const vfloat total = numbers_of<EACH_ROW, WHOLE>(acc, m, v) - zero * number;
    store(sums, load<vfloat>(sums) + total * scale);
  }

  // The sums are floats, to be scaled by row; or, if BY_ROW, whole numbers.
  template <int ROWS, int P>
  INLINE void add(const Part& part) const {
    constexpr int EACH_ROW = digits(ROWS), M = ROWS * EACH_ROW, V = 2 * P;
    const uint8_t* columns[P];
    for (int p = 0; p < P; ++p) columns[p] = w.data + w.offset(part.panel + p, part.from);
    const Digit* a = left.digits[part.row * D] + long(part.from) * w.block;
    const long ld = left.digits.ld, lda = D / EACH_ROW * ld;
    const int blocks = w.blocks();
    const float* numbers = &left.sums[part.row * long(blocks) + part.from];
    Ahead ahead = part.ahead;
    for (int b = part.from; b < part.until; ++b, a += w.block, ++numbers) {
      const int steps = w.block_steps(b, b + 1);
      const long marks = long(steps) * PANEL * 4;
      vint acc[M][V];
      repeat<M, V>(EACH(m, auto v) { acc[m][v] = BY_ROW ? load<vint>(part.at(m, v)) : vint{}; });
      multiply<BITS>(acc, a, lda, columns, PANEL * 4, steps, ahead);
      for (int d = 1; d < D / EACH_ROW; ++d) {
        repeat<M, V>(EACH(m, auto v) { acc[m][v] <<= DIGIT_BITS; });
        multiply<BITS>(acc, a + d * ld, lda, columns, PANEL * 4, steps);
      }
      repeat<ROWS, V>(EACH(m, auto v) {
        if constexpr (BY_ROW) return store(part.at(m, v), acc[m][v]);
        scale_and_add<EACH_ROW>(acc, m, v, columns[v / 2] + marks, numbers[m * blocks],
                                part.at(m, v));
      });
      if (ahead.from) ahead.from += long(steps) * LINE;
      for (int p = 0; p < P; ++p) columns[p] += marks + (BY_ROW ? 0 : PANEL * 4);
    }
  }

  void end(int row, int panel, float* sums) const {
    int32_t offset = 0;
    for (int b = 0; BY_ROW && b < w.blocks(); ++b)
      offset += w.middle * int32_t(left.sums[row * long(w.blocks()) + b]);
    for (int v = 0; v < 2; ++v, sums += LANES) {
      const long column = panel * long(PANEL) + v * LANES;
      vfloat total = BY_ROW ? to_floats(load<vint>(sums) - offset) : load<vfloat>(sums);
      total *= left.scales[row];
      if constexpr (BY_ROW) total *= load<vfloat>(w.scales + column);
      store(sums, w.bias ? total + load<vfloat>(w.bias + column) : total);
    }
  }
};
