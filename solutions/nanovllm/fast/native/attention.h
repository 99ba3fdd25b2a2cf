// Attention of a step's queries over the blocks of K and V that their sequences own.
#pragma once
#include <vector>

#include "codes.h"
#include "softmax.h"

// One layer's K and V. Four bytes hold PAIR values of Stored, or 4 codes of 8 bits. K [B, G,
// D / values, P, values]: column vectors over positions. V [B, G, P / values, D, values]: column
// vectors over the head dimension. D is padded to a multiple of PANEL, P is a multiple of LANES.
// Codes stand for code * scale, the scales [B, G, P] apart; those of K are 128 more, without sign.
struct Cache {
  uint8_t *k, *v;
  float *k_scales, *v_scales;  // null: Stored
  int32_t groups, dim, block;

  int values() const { return k_scales ? 4 : PAIR; }
  long size() const { return long(dim) * block / values() * 4; }  // bytes, of one block and group
  long at(int id, int group) const { return (long(id) * groups + group) * size(); }
  long row(int id, int group) const { return (long(id) * groups + group) * block; }

  void write(int slot, int group, const float* key, const float* value, int used, bool last) {
    const int id = slot / block, offset = slot % block;
    if (k_scales) {
      const float one = encode(key, used, 128, k + at(id, group) + offset * 4, long(block) * 4, 1);
      k_scales[row(id, group) + offset] = one;
      uint8_t* v_to = v + at(id, group) + offset / 4 * long(dim) * 4 + offset % 4;
      v_scales[row(id, group) + offset] = encode(value, used, 0, v_to, 16, 4);
      return;
    }
    Stored* k_to = reinterpret_cast<Stored*>(k + at(id, group)) + offset * PAIR;
    Stored* v_to = reinterpret_cast<Stored*>(v + at(id, group)) +
                   offset / PAIR * long(dim) * PAIR + offset % PAIR;
    for (int d = 0; d < used; ++d) {
      narrow(key[d], k_to[d / PAIR * long(block) * PAIR + d % PAIR]);
      narrow(value[d], v_to[d * PAIR]);
    }
    // A product always takes whole pairs of positions: what another request left next to the
    // last token must not be a NaN.
    if (last && PAIR == 2 && offset % 2 == 0)
      for (int d = 0; d < used; ++d) v_to[d * PAIR + 1] = 0;
  }

 private:
  // Lab 09's rows of int8. Four codes lie `step` apart, the next four `stride` behind them. Returns
  // the scale, which is NaN where a value is NaN.
  static float encode(const float* x, int used, int middle, uint8_t* to, long stride, int step) {
    float top = 0;
    bool finite = true;
    for (int d = 0; d < used; ++d) {
      finite &= std::fabs(x[d]) < INFINITY;
      top = std::max(top, std::fabs(x[d]));
    }
    const float scale = top / 127.0f, divisor = scale > 0 ? scale : 1.0f;
    for (int d = 0; d < used; ++d) {
      const float code = finite ? std::clamp(std::rint(x[d] / divisor), -127.0f, 127.0f) : 0.0f;
      to[d / 4 * stride + d % 4 * step] = uint8_t(int(code) + middle);
    }
    return finite ? scale : NAN;
  }
};

// The rows of one product: query heads of one group, of one or several tokens of a sequence. Row i
// is query head `head + i % heads` of the group and stands at `position + i / heads`.
struct Tile {
  int32_t group, head, heads, rows;
  int32_t token;     // the first token's row in q
  int32_t output;    // and its row in the result
  int32_t position;  // and its position in its sequence
  const int32_t* blocks;

  int end() const { return position + (rows - 1) / heads + 1; }
};

// Cuts the queries tokens first .. first + count - 1 of a sequence into tiles of `most` rows.
inline void add_tiles(std::vector<Tile>& tiles, int groups, int heads, int token, int output,
                      int count, int position, const int32_t* blocks, int most) {
  const int at_once = std::min(heads, most), tokens = std::max(1, most / heads);
  for (int t = 0; t < count; t += tokens)
    for (int g = 0; g < groups; ++g)
      for (int h = 0; h < heads; h += at_once) {
        const int taken = std::min(at_once, heads - h);
        tiles.push_back({g, h, taken, std::min(tokens, count - t) * taken, token + t, output + t,
                         position + t, blocks});
      }
}

// Asks for what will be read soon: V of these positions, and K of the next ones.
inline void ahead(const Tile& tile, const Cache& cache, int position, int count) {
  for (int p = position; p < position + count; p += cache.block) {
    if (p < tile.end()) {
      const uint8_t* from = cache.v + cache.at(tile.blocks[p / cache.block], tile.group);
      for (long i = 0; i < cache.size(); i += LINE) __builtin_prefetch(from + i);
    }
    const int next = p + count;
    if (next < tile.end()) {
      const uint8_t* from = cache.k + cache.at(tile.blocks[next / cache.block], tile.group);
      for (long i = 0; i < cache.size(); i += LINE) __builtin_prefetch(from + i);
    }
  }
}

// Vectors that are worked on together, for so many rows.
constexpr int vectors_for(int rows) { return LANES < 16 ? 1 : rows <= 5 ? 4 : 2; }

// Queries as attention reads them: [G, T, H / G, D] of Operand; with codes in the cache, digits [G,
// T, H / G, DIGITS, D], a scale each, and the sum of each one's numbers.
struct Queries {
  const Operand* values;
  const Digit* digits;
  const float *scales, *sums;
};

// What the digits' sums of M rows make up.
template <int M, int V, class F>
INLINE void put_together(const vint (&acc)[M * DIGITS][V], F f) {
  repeat<M>(EACH(m) {
    repeat<V>(EACH(v) {
      vfloat total = to_floats(acc[m * DIGITS][v]);
      repeat<DIGITS - 1>(EACH(d) {
        total = total * float(BASE) + to_floats(acc[m * DIGITS + d + 1][v]);
      });
      f(m, v, total);
    });
  });
}

// Scores of M queries, the first of which is `row`, and V vectors of positions.
template <bool CODES, int M, int V>
INLINE void score(const Tile& tile, const Cache& cache, const Queries& q, long row, float scale,
                  int from, int position, float* scores, long lds) {
  const uint8_t* columns[V];
  const float* scales[V];
  for (int v = 0; v < V; ++v) {
    const int p = std::min(position + v * LANES, (tile.end() - 1) / LANES * LANES);
    const int id = tile.blocks[p / cache.block];
    columns[v] = cache.k + cache.at(id, tile.group) + p % cache.block * 4;
    if (CODES) scales[v] = cache.k_scales + cache.row(id, tile.group) + p % cache.block;
  }
  ahead(tile, cache, position, V * LANES);
  float* to = scores + (position - from);
  if constexpr (CODES) {
    vint acc[M * DIGITS][V];
    repeat<M * DIGITS>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] = vint{}; }); });
    multiply_codes<8, M * DIGITS, V, 1>(acc, q.digits + row * DIGITS * cache.dim, cache.dim, columns,
                                        long(cache.block) * 4, cache.dim / 4);
    put_together<M, V>(acc, [&](auto m, auto v, vfloat total) __attribute__((always_inline)) {
      total = (total - 128.0f * q.sums[row + m]) * (q.scales[row + m] * scale);
      store(to + m * lds + v * LANES, total * load<vfloat>(scales[v]));
    });
  } else {
    vfloat acc[M][V];
    repeat<M>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] = vfloat{}; }); });
    multiply<M, V, 1>(acc, q.values + row * cache.dim, cache.dim, columns, long(cache.block) * 4,
                      cache.dim / PAIR);
    repeat<M>(EACH(m) {
      repeat<V>(EACH(v) { store(to + m * lds + v * LANES, acc[m][v] * scale); });
    });
  }
}

// Room for one thread's scores, kept from step to step.
struct AttentionRoom {
  std::vector<float> scores, sums;
  std::vector<Operand> weights;
  std::vector<Digit> digits;
};

constexpr int SEGMENT = 512;  // positions whose products are added as whole numbers

// Sums of V over the positions, each times its weight: M rows, V vectors of the head dimension.
template <bool CODES, int M, int V>
INLINE void mix(const Tile& tile, const Cache& cache, const AttentionRoom& room,
                const Operand* weights, long ldw, int from, int column, const float* inverse,
                float* sums) {
  vfloat acc[M][V];
  repeat<M>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] = vfloat{}; }); });
  auto block_end = [&](int p) { return std::min(tile.end(), (p / cache.block + 1) * cache.block); };
  auto place = [&](int p) {
    return cache.v + cache.at(tile.blocks[p / cache.block], tile.group) +
           (long(p % cache.block / cache.values()) * cache.dim + column) * 4;
  };
  if constexpr (CODES) {
    for (int p = from; p < tile.end();) {
      const int end = std::min(tile.end(), p + SEGMENT);
      vint whole[M * DIGITS][V];
      repeat<M * DIGITS>(EACH(m) { repeat<V>(EACH(v) { whole[m][v] = vint{}; }); });
      while (p < end) {
        const int until = std::min(end, block_end(p));
        multiply_codes<8, M * DIGITS, V, V, true>(whole, room.digits.data() + (p - from), ldw,
                                                  {place(p)}, long(cache.dim) * 4,
                                                  (until - p + 3) / 4);
        p = until;
      }
      put_together<M, V>(whole, [&](auto m, auto v, vfloat total) __attribute__((always_inline)) {
        acc[m][v] += total;
      });
    }
  } else {
    for (int p = from; p < tile.end();) {
      const int until = block_end(p);
      multiply<M, V, V>(acc, weights + (p - from), ldw, {place(p)}, long(cache.dim) * 4,
                        (until - p + PAIR - 1) / PAIR);
      p = until;
    }
  }
  repeat<M>(EACH(m) {
    repeat<V>(EACH(v) {
      store(sums + m * long(cache.dim) + column + v * LANES, acc[m][v] * inverse[m]);
    });
  });
}

// A row of weights times the scales of V becomes digits without sign; returns the numbers' scale.
inline float weigh(const Tile& tile, const Cache& cache, int from, float* weights, Digit* to,
                   long ld) {
  constexpr int MOST = (1 << std::min(DIGITS * DIGIT_BITS, 30)) - 1;
  float top = 0;
  bool finite = true;
  for (int p = from; p < tile.end(); ++p) {
    float& weight = weights[p - from];
    if (weight == 0) continue;
    weight *= cache.v_scales[cache.row(tile.blocks[p / cache.block], tile.group) + p % cache.block];
    finite &= weight < INFINITY;
    top = std::max(top, weight);
  }
  if (!finite) return NAN;
  const float scale = top / MOST > 0 ? top / MOST : 1.0f;
  const int width = (tile.end() - from + 3) / 4 * 4;
  for (int i = 0; i < width; ++i) {
    const float steps = from + i < tile.end() ? weights[i] / scale : 0.0f;
    const int32_t number = std::min(int32_t(steps + 0.5f), MOST);
    for (int d = 0; d < DIGITS; ++d)
      to[d * ld + i] = Digit(number >> (DIGITS - 1 - d) * DIGIT_BITS & (BASE - 1));
  }
  return scale;
}

// The result is [outputs, lda] of H * used values a row, in `out`.
template <bool CODES>
inline void attend(const Tile& tile, const Cache& cache, const Queries& q, int tokens,
                   int group_heads, int used, float scale, int window, AttentionRoom& room,
                   Operand* out, long lda) {
  constexpr int MOST = rows_at_once(CODES ? DIGITS : 1);
  int from = window ? std::max(0, tile.position - window + 1) / LANES * LANES : 0;
  const int width = (tile.end() - from + 4 * LANES - 1) / (4 * LANES) * (4 * LANES);
  const long lds = width + LANES;
  room.scores.resize(MAX_ROWS * lds);
  room.sums.resize(MAX_ROWS * cache.dim);
  const long row = (long(tile.group) * tokens + tile.token) * group_heads + tile.head;
  float inverse[MAX_ROWS];
  float* scores = room.scores.data();
  with_rows<MOST>(tile.rows, [&](auto rows) {
    constexpr int M = decltype(rows)::value, V = vectors_for(CODES ? M * DIGITS : M);
    for (int p = from; p < tile.end(); p += V * LANES)
      score<CODES, M, V>(tile, cache, q, row, scale, from, p, scores, lds);
  });
  for (int m = 0; m < tile.rows; ++m) {
    const int position = tile.position + m / tile.heads;
    const int low = window ? std::max(0, position - window + 1) : 0;
    inverse[m] = soften(scores + m * lds, low - from, position + 1 - from, width);
  }
  const Operand* weights = nullptr;
  if constexpr (CODES) {
    room.digits.resize(MOST * DIGITS * lds);
    for (int m = 0; m < tile.rows; ++m)
      inverse[m] *= weigh(tile, cache, from, scores + m * lds, &room.digits[m * DIGITS * lds], lds);
  } else {
#if NV_DOT
    room.weights.resize(MAX_ROWS * lds);
    for (long i = 0; i < tile.rows * lds; ++i) narrow(scores[i], room.weights[i]);
    weights = room.weights.data();
#else
    weights = scores;
#endif
  }
  with_rows<MOST>(tile.rows, [&](auto rows) {
    constexpr int M = decltype(rows)::value, V = vectors_for(CODES ? M * DIGITS : M);
    int column = 0;
    float* sums = room.sums.data();
    for (; column + V * LANES <= cache.dim; column += V * LANES)
      mix<CODES, M, V>(tile, cache, room, weights, lds, from, column, inverse, sums);
    if constexpr (V > 2)
      for (; column < cache.dim; column += 2 * LANES)
        mix<CODES, M, 2>(tile, cache, room, weights, lds, from, column, inverse, sums);
  });
  for (int m = 0; m < tile.rows; ++m) {
    const int head = tile.group * group_heads + tile.head + m % tile.heads;
    Operand* to = out + (tile.output + m / tile.heads) * lda + long(head) * used;
    for (int d = 0; d < used; ++d) narrow(room.sums[m * long(cache.dim) + d], to[d]);
  }
}
