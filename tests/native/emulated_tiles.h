// Matrix tiles without the instructions, for tests of fast/native on any processor.
#pragma once

struct Tiles {
  Shapes shapes;
  uint8_t at[8][TILE][64];
};
inline thread_local Tiles tiles;

inline void set_shapes(const Shapes& shapes) {
  tiles.shapes = shapes;
  std::memset(tiles.at, 0, sizeof tiles.at);
}

inline void unset_shapes() { set_shapes({}); }

template <int T>
inline void load_tile(const void* from, long stride) {
  for (int i = 0; i < tiles.shapes.rows[T]; ++i)
    std::memcpy(tiles.at[T][i], static_cast<const char*>(from) + i * stride, tiles.shapes.bytes[T]);
}

template <int T>
inline void store_tile(void* to, long stride) {
  for (int i = 0; i < tiles.shapes.rows[T]; ++i)
    std::memcpy(static_cast<char*>(to) + i * stride, tiles.at[T][i], tiles.shapes.bytes[T]);
}

template <int T>
inline void clear_tile() {
  std::memset(tiles.at[T], 0, sizeof tiles.at[T]);
}

// As Intel's manual has it: of pairs, even and odd products apart, and both added to the sum at the
// end; of bytes, those of A with a sign, whole numbers.
template <bool BYTES, int C, int A, int B>
inline void multiply_tile() {
  auto value = [](int t, int i, int j) { return widen(load<uint16_t>(tiles.at[t][i] + 2 * j)); };
  for (int m = 0; m < tiles.shapes.rows[A]; ++m)
    for (int n = 0; n < TILE; ++n) {
      uint8_t* sum = tiles.at[C][m] + 4 * n;
      float even = 0, odd = 0;
      int32_t whole = load<int32_t>(sum);
      for (int s = 0; s < tiles.shapes.rows[B]; ++s) {
        even += value(A, m, 2 * s) * value(B, s, 2 * n);
        odd += value(A, m, 2 * s + 1) * value(B, s, 2 * n + 1);
        for (int i = 0; i < 4; ++i)
          whole += int8_t(tiles.at[A][m][4 * s + i]) * tiles.at[B][s][4 * n + i];
      }
      if (BYTES) store(sum, whole);
      else store(sum, load<float>(sum) + (even + odd));
    }
}
