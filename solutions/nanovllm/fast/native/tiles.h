// Matrix tiles (AMX): registers of up to 16 rows of 64 bytes, and products of whole tiles. Where
// the processor has none, NV_EMULATE_TILES takes the same path, for tests; a panel must hold a
// tile.
#pragma once
#include "matrix.h"

#if NV_DOT && (defined(__AMX_BF16__) || defined(NV_EMULATE_TILES) && defined(__AVX2__))
#define NV_TILES 1
#else
#define NV_TILES 0
#endif

constexpr int TILE = 16;  // rows of a tile; a row has as many floats, or pairs of values
constexpr int PANEL_LINES = TILE * PANEL * 4 / LINE;  // of a panel, in a step of whole tiles

// Tiles 0 to 3 are sums, R rows of tiles and 4 / R side by side; 4 and 5 (R = 2) are left sides, 6
// and 7 right sides.
constexpr int LEFT = 4, RIGHT = 6;

// What a processor is told of its tiles.
struct alignas(LINE) Shapes {
  uint8_t palette, start, unused[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

#ifdef NV_EMULATE_TILES
#include "emulated_tiles.h"
#else
inline void set_shapes(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void unset_shapes() { asm volatile("tilerelease"); }

template <int T>
INLINE void load_tile(const void* from, long stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
INLINE void store_tile(void* to, long stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}

template <int T>
INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

// Tile C += tile A times tile B, which are of pairs; or of bytes, those of A with a sign.
template <bool BYTES, int C, int A, int B>
INLINE void multiply_tile() {
  if (BYTES) asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  else asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
#endif

// The shapes that a thread's tiles have, as one number; to set them takes as long as ten products.
inline thread_local int shaped = 0;

// For products of `rows` rows of a left side with `pairs` pairs. The second of two left sides has
// the rows behind the first TILE; or, if `alike`, as many.
template <int R>
INLINE void shape_tiles(int rows, int pairs, bool alike = false) {
  const int wanted = ((R * 2 + alike) * 256 + rows) * 256 + pairs;
  if (wanted == shaped) return;
  shaped = wanted;
  Shapes shapes{1};
  for (int t = 0; t < 8; ++t) {
    const int row = alike ? 0 : t < LEFT ? t * R / 4 : t - LEFT;
    shapes.rows[t] = t < RIGHT ? std::clamp(rows - row * TILE, 1, TILE) : pairs;
    shapes.bytes[t] = t < LEFT || t >= RIGHT ? 64 : pairs * 4;
  }
  set_shapes(shapes);
}

// What a thread has in its tiles is kept whenever another one runs, until it gives them back.
inline void release_tiles() {
  if (!NV_TILES) return;
  shaped = 0;
  unset_shapes();
}

// As `multiply`, for R left sides (tiles have their shapes by then) and V tiles of columns: a row
// lies `lda` bytes behind the one before, a left side `apart`; step s takes `pairs` pairs from
// right(s, v) on, `stride` bytes apart. begin(C, r, v) has to fill tile C, end(C, r, v) to store
// it; ask(s, v) is for memory that will be wanted.
template <int R, int V, bool BYTES, class Right, class Ask, class Begin, class End>
INLINE void multiply_tiles(const void* a, long apart, long lda, Right right, long stride, int steps,
                           int pairs, Ask ask, Begin begin, End end) {
  auto each_sum = [&](auto f) __attribute__((always_inline)) {
    repeat<R, V>(EACH(r, auto v) { f(Int<r * 4 / R + v>{}, r, v); });
  };
  each_sum(begin);
  const char* left = static_cast<const char*>(a);
  for (int s = 0; s < steps; ++s, left += pairs * 4) {
    repeat<R>(EACH(r) { load_tile<LEFT + r>(left + r * apart, lda); });
    repeat<V>(EACH(v) {
      load_tile<RIGHT + v % 2>(right(s, v), stride);
      ask(s, v);
      repeat<R>(EACH(r) { multiply_tile<BYTES, r * 4 / R + v, LEFT + r, RIGHT + v % 2>(); });
    });
  }
  each_sum(end);
}

// The same with tiles of panels, that of v being at column(v) in the first step. Asks for the lines
// of `ahead` as steps go; where there are none, for what lies further on in these columns.
template <int R, int V, bool BYTES, class Column, class Begin, class End>
INLINE void multiply_panels(const void* a, long apart, long lda, Column column, int steps,
                            Ahead ahead, Begin begin, End end) {
  auto right = [=](int s, int v) { return column(v) + long(s) * TILE * PANEL * 4; };
  auto multiply = [&](auto ask) __attribute__((always_inline)) {
    multiply_tiles<R, V, BYTES>(a, apart, lda, right, PANEL * 4, steps, TILE, ask, begin, end);
  };
  if (ahead.from)
    multiply([=](int s, int v) __attribute__((always_inline)) {
      const uint8_t* line = ahead.from + long(s) * ahead.lines * LINE;
      for (int i = 0; v == 0 && i < ahead.lines; ++i) __builtin_prefetch(line + i * LINE, 0, 2);
    });
  else
    multiply([=](int s, int v) __attribute__((always_inline)) {
      for (int i = 0; i < TILE; ++i) __builtin_prefetch(right(s, v) + REACH + i * PANEL * 4);
    });
}
