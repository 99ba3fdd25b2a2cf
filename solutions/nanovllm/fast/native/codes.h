// Products of rows of digits with codes of 4 or 8 bits.
#pragma once
#include <vector>

#include "matrix.h"

// The rows of a step as digits, and what they have to be multiplied with in the end.
struct Left {
  const Digit* digits;  // [T, digits, ld]
  long ld;
  const float* scales;  // [T]
  const float* sums;    // [T, blocks]: of each block of a row's numbers
};

// Kept from step to step; `fit` before a step, for so many rows of up to so many values, which end
// `apart` values before the next ones.
class DigitRoom {
 public:
  void fit(long rows, long longest, long apart) {
    ld_ = (longest + LANES - 1) / LANES * LANES + apart;
    digits_.resize(rows * DIGITS * ld_ + LANES);
    scales_.resize(rows);
    sums_.resize(rows * (longest / 8 + 1));
  }

  void fill(long t, const Operand* x, int count, int digits, int most, int block) {
    scales_[t] = to_digits(x, count, digits, most, block, &digits_[t * digits * ld_], ld_,
                           &sums_[t * ((count + block - 1) / block)]);
  }

  Left left() const { return {digits_.data(), ld_, scales_.data(), sums_.data()}; }

 private:
  std::vector<Digit> digits_;
  std::vector<float> scales_, sums_;
  long ld_ = 0;
};

// As `multiply`, a step being 4 or 8 codes. SIGNED: the codes have a sign, and the digits have none.
template <int BITS, int M, int V, int J, bool SIGNED = false>
INLINE void multiply_codes(vint (&acc)[M][V], const Digit* a, long lda,
                           const uint8_t* const (&w)[V / J], long stride, int steps,
                           const char* ahead = nullptr, int far = 0) {
  walk_steps<M>(a, lda, 32 / BITS, w, stride, steps, ahead, far, [&](auto row, auto& columns)
                __attribute__((always_inline)) {
    vint codes[V];
    repeat<V>(EACH(v) { codes[v] = pinned(load<vint>(columns[v / J] + v % J * LANES * 4)); });
    if constexpr (BITS == 8) {
      repeat<M>(EACH(m) {
        repeat<V>(EACH(v) { acc[m][v] = dot4<SIGNED>(acc[m][v], row(m), codes[v]); });
      });
    } else {
      vint half[V];
      repeat<V>(EACH(v) { half[v] = codes[v] & 0x0f0f0f0f; });
      repeat<M>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] = dot4(acc[m][v], row(m), half[v]); }); });
      repeat<V>(EACH(v) { half[v] = (codes[v] >> 4) & 0x0f0f0f0f; });
      repeat<M>(EACH(m) {
        repeat<V>(EACH(v) { acc[m][v] = dot4(acc[m][v], row(m) + 4, half[v]); });
      });
    }
  });
}

constexpr long NEAREST = 16 * 1024;  // bytes of a panel that stay in the first-level cache

// How a product is done: the bits of a code, the digits of a value; BY_ROW as in Matrix.
template <int BITS_, int DIGITS_, bool BY_ROW_>
struct Kind {
  static constexpr int BITS = BITS_, D = DIGITS_;
  static constexpr bool BY_ROW = BY_ROW_;
  // Whether the sum of a block of up to 512 has room in 32 bits. Then several rows take one digit
  // after the other, and less is left to do behind a block; one row takes all at once, and reads
  // the codes once. The sums are the same.
  static constexpr bool WHOLE = D * DIGIT_BITS - 1 + BITS + 9 <= 31;
  static constexpr int digits(int rows) { return WHOLE && rows > 1 ? 1 : D; }
  static constexpr int ROWS = std::max(1, MAX_ROWS / digits(2));
};

// Adds blocks `from` .. `until` - 1 of the inner dimension to sums [P, ROWS, PANEL]: floats, to be
// scaled by row; or, if BY_ROW, whole numbers.
template <class K, int ROWS, int P>
INLINE void add_codes(const Left& left, int row, const Matrix& w, int panel, int from, int until,
                      float* sums, long ld, const char* ahead) {
  constexpr int D = K::digits(ROWS), M = ROWS * D, V = 2 * P;
  const uint8_t* columns[P];
  for (int p = 0; p < P; ++p) columns[p] = w.bytes() + w.offset(panel + p, from);
  const Digit* a = left.digits + long(row) * K::D * left.ld + long(from) * w.block;
  const long lda = K::D / D * left.ld;
  const int blocks = w.blocks();
  const float* numbers = left.sums + long(row) * blocks + from;
  const bool apart = w.middle < 0;
  auto at = [&](int m, int v) { return sums + v / 2 * ld + m * PANEL + v % 2 * LANES; };
  for (int b = from; b < until; ++b, a += w.block, ++numbers) {
    const int steps = w.block_steps(b);
    vint acc[M][V];
    repeat<M>(EACH(m) {
      repeat<V>(EACH(v) { acc[m][v] = K::BY_ROW ? load<vint>(at(m, v)) : vint{}; });
    });
    multiply_codes<K::BITS, M, V, 2>(acc, a, lda, columns, PANEL * 4, steps, ahead,
                                        ahead ? 0 : reach(ROWS));
    for (int d = 1; d < K::D / D; ++d) {
      repeat<M>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] <<= DIGIT_BITS; }); });
      multiply_codes<K::BITS, M, V, 2>(acc, a + d * left.ld, lda, columns, PANEL * 4, steps);
    }
    if (ahead) ahead += long(steps) * LINE;
    for (int p = 0; p < P; ++p) columns[p] += long(steps) * PANEL * 4;
    if constexpr (K::BY_ROW) {
      repeat<M>(EACH(m) { repeat<V>(EACH(v) { store(at(m, v), acc[m][v]); }); });
      continue;
    }
    repeat<V>(EACH(v) {
      const vint marks = load<vint>(columns[v / 2] + v % 2 * LANES * 4);
      const vfloat zero = apart ? to_floats(marks & 255) : float(w.middle) - vfloat{};
      const vfloat scale = (vfloat)(apart ? marks & ~255 : marks);
      repeat<ROWS>(EACH(m) {
        vfloat total;
        if constexpr (K::WHOLE) {
          vint whole = acc[m * D][v];
          repeat<D - 1>(EACH(d) { whole = (whole << DIGIT_BITS) + acc[m * D + d + 1][v]; });
          total = to_floats(whole);
        } else {
          total = to_floats(acc[m * D][v]);
          repeat<D - 1>(EACH(d) {
            total = total * float(BASE) + to_floats(acc[m * D + d + 1][v]);
          });
        }
        total -= zero * numbers[m * blocks];
        store(at(m, v), load<vfloat>(at(m, v)) + total * scale);
      });
    });
    for (int p = 0; p < P; ++p) columns[p] += PANEL * 4;
  }
}

template <class K>
__attribute__((noinline)) void add_codes(const Left& left, int row, int rows, const Matrix& w,
                                         int panel, int count, int from, int until, float* sums,
                                         long ld, const char* ahead) {
  with_rows<K::ROWS>(rows, [&](auto rows_of) {
    constexpr int M = decltype(rows_of)::value, P = panels_for(M, K::digits(M));
    if (count == P) return add_codes<K, M, P>(left, row, w, panel, from, until, sums, ld, ahead);
    if constexpr (P > 1)
      for (int p = 0; p < count; ++p)
        add_codes<K, M, 1>(left, row, w, panel + p, from, until, sums + p * ld, ld, ahead);
  });
}

// Of a matrix of codes and rows of digits, what `share_out` (linear.h) wants.
template <class K>
struct CodeProduct {
  const Left& left;
  const Matrix& w;

  static constexpr int most = K::ROWS;
  static constexpr int together(int rows) { return panels_for(rows, K::digits(rows)); }
  long row_bytes() const { return left.ld * K::D * sizeof(Digit); }
  int parts() const { return w.blocks(); }
  int at_once() const {
    const int most = std::max<long>(1, NEAREST / w.offset(0, 1)), blocks = w.blocks();
    return (blocks + (blocks - 1) / most) / ((blocks - 1) / most + 1);  // chunks alike
  }
  int steps(int from, int until) const {
    int steps = 0;
    for (int b = from; b < until; ++b) steps += w.block_steps(b);
    return steps;
  }
  const void* part(int panel, int b) const { return w.bytes() + w.offset(panel, b); }
  static int lines(int) { return 1; }
  void begin(float* sums) const { std::fill_n(sums, PANEL, 0.0f); }
  void add(int row, int rows, int panel, int count, int from, int until, float* sums, long ld,
           Ahead ahead) const {
    add_codes<K>(left, row, rows, w, panel, count, from, until, sums, ld, ahead.from);
  }
  void end(int row, int panel, float* sums) const {
    for (int v = 0; v < 2; ++v, sums += LANES) {
      const long column = panel * long(PANEL) + v * LANES;
      vfloat total = load<vfloat>(sums);
      if constexpr (K::BY_ROW) {
        int32_t offset = 0;
        for (int b = 0; b < w.blocks(); ++b)
          offset += w.middle * int32_t(left.sums[row * long(w.blocks()) + b]);
        total = to_floats(load<vint>(sums) - offset);
      }
      total *= left.scales[row];
      if constexpr (K::BY_ROW) total *= load<vfloat>(w.scales + column);
      store(sums, w.bias ? total + load<vfloat>(w.bias + column) : total);
    }
  }
};
