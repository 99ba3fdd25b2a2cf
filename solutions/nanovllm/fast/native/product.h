// Products of a few rows with packed columns: the inner loop of every matrix and of attention.
#pragma once
#include <utility>

#include "vectors.h"

// How far ahead in its own columns a product asks for memory, where nothing else does: far enough
// for the memory to answer in time, and near enough that this is still there when it is wanted.
constexpr int REACH = 1536;

// Memory that a product asks for as it goes: so many lines with each step; or, if that is null,
// what lies so many bytes further on in each column. Into the second-level cache alone: a processor
// waits for more lines there than in the first one.
struct Ahead {
  const uint8_t* from = nullptr;
  int lines = 1, further = REACH;
};

constexpr Ahead NOTHING{nullptr, 0, 0};

template <int N>
using Int = std::integral_constant<int, N>;

#define INLINE inline __attribute__((always_inline))

// f(0), f(1), ..., each with a constant of its own: only arrays with constant indices are kept in
// registers.
template <class F, int... I>
INLINE void repeat(F f, std::integer_sequence<int, I...>) {
  (f(Int<I>{}), ...);
}

template <int N, class F>
INLINE void repeat(F f) {
  repeat(f, std::make_integer_sequence<int, N>{});
}

// EACH(i) or EACH(i, auto j): a function of such constants.
#define EACH(...) [&](auto __VA_ARGS__) __attribute__((always_inline))

// f(0, 0), f(0, 1), ..., N of each of the M.
template <int M, int N, class F>
INLINE void repeat(F f) {
  repeat<M>(EACH(i) { repeat<N>(EACH(j) { f(i, j); }); });
}

// Keeps a pointer in a register of its own: compilers like to hold one for every row of a product,
// which are more than there are. And a vector, once it is loaded: of few rows compilers like to
// load it for each of them anew.
template <class T>
INLINE T pinned(T value) {
#if defined(__x86_64__)
  if constexpr (std::is_pointer_v<T>) asm("" : "+r"(value));
  else asm("" : "+v"(value));
#endif
  return value;
}

// Walks through the inner dimension: f(row, columns) at each step, where row(m) is what row m of
// `a` has there, and columns[c] what lies at w[c]. A step is `width` values of a row, `stride` of
// the columns, and asks for memory `ahead`, one line if that says where.
template <int M, int C, class A, class W, class F>
INLINE void walk_steps(const A* a, long lda, int width, const W* const (&w)[C], long stride,
                       int steps, Ahead ahead, F f) {
  constexpr int BASES = (M + 2) / 3;
  const A* rows[BASES];
  const W* columns[C];
  repeat<BASES>(EACH(i) { rows[i] = a + 3 * i * lda; });
  repeat<C>(EACH(i) { columns[i] = w[i]; });
  for (int s = 0; s < steps; ++s) {
    repeat<BASES>(EACH(i) { rows[i] = pinned(rows[i]); });
    repeat<C>(EACH(i) { columns[i] = pinned(columns[i]); });
    if (ahead.from)
      __builtin_prefetch(ahead.from + long(s) * LINE, 0, 2);
    else if (ahead.further)
      repeat<C>(EACH(i) {
        for (const W *line = columns[i], *end = line + stride; line < end; line += LINE)
          __builtin_prefetch(line + ahead.further, 0, 2);
      });
    f(EACH(m) { return rows[m / 3] + m % 3 * lda; }, columns);
    repeat<BASES>(EACH(i) { rows[i] += width; });
    repeat<C>(EACH(i) { columns[i] += stride; });
  }
}

// acc[m][v] += sum over s of row m of `a` at step s times column vector v at step s. A step is
// PAIR values of the inner dimension. J column vectors lie side by side, the first J of them from
// w[0], the next from w[1], ..., and their steps are `stride` bytes apart, 4 of them for a column.
template <int M, int V, int C>
INLINE void multiply(vfloat (&acc)[M][V], const Operand* a, long lda, const uint8_t* const (&w)[C],
                     long stride, int steps, Ahead ahead = NOTHING) {
  constexpr int J = V / C;
  walk_steps<M>(a, lda, PAIR, w, stride, steps, ahead, EACH(row, auto& columns) {
    vint x[V];
    repeat<V>(EACH(v) { x[v] = pinned(load<vint>(columns[v / J] + v % J * LANES * 4)); });
    if constexpr (NV_DOT) {
      repeat<M, V>(EACH(m, auto v) { acc[m][v] = dot(acc[m][v], load<int32_t>(row(m)), x[v]); });
    } else {
      repeat<PAIR>(EACH(i) {
        vfloat b[V];
        repeat<V>(EACH(v) { b[v] = (vfloat)(PAIR == 1 ? x[v] : i ? x[v] & HIGH : x[v] << 16); });
        repeat<M, V>(EACH(m, auto v) { acc[m][v] += row(m)[i] * b[v]; });
      });
    }
  });
}

// Calls f with the number of rows as a compile-time constant.
template <int M, class F>
INLINE void with_rows(int rows, F f) {
  if constexpr (M > 1) {
    if (rows < M) return with_rows<M - 1>(rows, f);
  }
  f(Int<M>{});
}
