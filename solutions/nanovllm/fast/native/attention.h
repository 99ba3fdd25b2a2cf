// Attention of a step's queries over the blocks of K and V that their sequences own.
#pragma once
#include <type_traits>

#include "codes.h"
#include "softmax.h"
#include "tiles.h"

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
  int together() const { return block % (2 * TILE) ? TILE : 2 * TILE; }  // positions in one product

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
    Stored keys[LANES]{}, values[LANES];
    for (int d = 0; d < used; d += LANES) {
      const int count = std::min(LANES, used - d);
      narrow(key + d, count, keys);
      narrow(value + d, count, values);
      for (int i = 0; i < count; i += PAIR)
        store(k_to + (d + i) * long(block), load<int32_t>(keys + i));
      for (int i = 0; i < count; ++i) v_to[(d + i) * PAIR] = values[i];
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
  auto ask = [&](const uint8_t* from, int p) {
    if (p >= tile.end()) return;
    from += cache.at(tile.blocks[p / cache.block], tile.group);
    for (long i = 0; i < cache.size(); i += LINE) __builtin_prefetch(from + i);
  };
  for (int p = position; p < position + count; p += cache.block)
    ask(cache.v, p), ask(cache.k, p + count);
}

// Where K's columns of `width` positions are, of which the first is `position`; of positions behind
// the last one, where that one's are.
inline const uint8_t* keys(const Tile& tile, const Cache& cache, int position, int width) {
  const int p = std::min(position, (tile.end() - 1) / width * width);
  return cache.k + cache.at(tile.blocks[p / cache.block], tile.group) + p % cache.block * 4;
}

// Where V of the pair, or the four, of positions begins that has this one.
inline const uint8_t* values(const Tile& tile, const Cache& cache, int p) {
  return cache.v + cache.at(tile.blocks[p / cache.block], tile.group) +
         long(p % cache.block / cache.values()) * cache.dim * 4;
}

// Vectors that are worked on together, for so many rows.
constexpr int vectors_for(int rows) { return LANES < 16 ? 1 : rows <= 5 ? 4 : 2; }

// Queries as attention reads them: [G, T, H / G, D] of Operand; with codes in the cache, digits [G,
// T, H / G, DIGITS, D].
struct Queries {
  const Operand* values;
  const DigitRoom& codes;
};

// Scores of M queries, the first of which is `row`, and V vectors of positions.
template <bool CODES, int M, int V>
INLINE void score(const Tile& tile, const Cache& cache, const Queries& q, long row, int from,
                  int position, float* scores, long lds) {
  const uint8_t* columns[V];
  const float* scales[V];
  for (int v = 0; v < V; ++v) {
    const int p = std::min(position + v * LANES, (tile.end() - 1) / LANES * LANES);
    const long row = cache.row(tile.blocks[p / cache.block], tile.group) + p % cache.block;
    columns[v] = keys(tile, cache, p, LANES);
    if (CODES) scales[v] = cache.k_scales + row;
  }
  ahead(tile, cache, position, V * LANES);
  float* to = scores + (position - from);
  if constexpr (CODES) {
    vint acc[M * DIGITS][V];
    repeat<M * DIGITS, V>(EACH(m, auto v) { acc[m][v] = vint{}; });
    multiply_codes<8, M * DIGITS, V, 1>(acc, q.codes.digits.data() + row * DIGITS * cache.dim,
                                        cache.dim, columns, long(cache.block) * 4, cache.dim / 4);
    repeat<M, V>(EACH(m, auto v) {
      const vfloat total = numbers_of<DIGITS, false>(acc, m, v) - 128.0f * q.codes.sums[row + m];
      store(to + m * lds + v * LANES, total * q.codes.scales[row + m] * load<vfloat>(scales[v]));
    });
  } else {
    vfloat acc[M][V];
    repeat<M, V>(EACH(m, auto v) { acc[m][v] = vfloat{}; });
    multiply<M, V, 1>(acc, q.values + row * cache.dim, cache.dim, columns, long(cache.block) * 4,
                      cache.dim / PAIR);
    repeat<M, V>(EACH(m, auto v) { store(to + m * lds + v * LANES, acc[m][v]); });
  }
}

// Positions that are worked on together: their scores and K and V stay near, and sums of products
// of whole numbers fit into 32 bits.
constexpr int SEGMENT = 512;

// Room for one thread's scores, kept from step to step.
struct AttentionRoom {
  Lines<float> scores, sums;
  Lines<Operand> weights, tail;
  std::vector<Digit> digits;
};

// Adds V of positions from .. until - 1, each times its weight, to sums [M, D]: V vectors of the
// head dimension. With codes the weights are digits, and `scales` theirs.
template <bool CODES, int M, int V, class W>
INLINE void mix(const Tile& tile, const Cache& cache, const AttentionRoom& room,
                const W* weights, long ldw, int from, int until, int column,
                const float* scales, float* sums) {
  auto place = [&](int p) { return values(tile, cache, p) + column * 4; };
  auto each_block = [&](auto f) __attribute__((always_inline)) {
    for (int p = from, end; p < until; p = end) {
      end = std::min(until, (p / cache.block + 1) * cache.block);
      f(p, end - p);
    }
  };
  auto add = [&](auto m, auto v, vfloat x) __attribute__((always_inline)) {
    float* to = sums + m * long(cache.dim) + column + v * LANES;
    store(to, load<vfloat>(to) + x);
  };
  if constexpr (CODES) {
    vint whole[M * DIGITS][V];
    repeat<M * DIGITS, V>(EACH(m, auto v) { whole[m][v] = vint{}; });
    each_block([&](int p, int count) __attribute__((always_inline)) {
      multiply_codes<8, M * DIGITS, V, V, true>(whole, room.digits.data() + (p - from), ldw,
                                                {place(p)}, long(cache.dim) * 4, (count + 3) / 4);
    });
    repeat<M, V>(EACH(m, auto v) {
      add(m, v, numbers_of<DIGITS, false>(whole, m, v) * scales[m]);
    });
  } else {
    vfloat acc[M][V];
    repeat<M, V>(EACH(m, auto v) { acc[m][v] = vfloat{}; });
    each_block([&](int p, int count) __attribute__((always_inline)) {
      multiply<M, V, V>(acc, weights + (p - from), ldw, {place(p)}, long(cache.dim) * 4,
                        (count + PAIR - 1) / PAIR);
    });
    repeat<M, V>(EACH(m, auto v) { add(m, v, acc[m][v]); });
  }
}

// A row of weights times the scales of V becomes digits without sign; returns the numbers' scale.
inline float weigh(const Tile& tile, const Cache& cache, int from, int until, float* weights,
                   Digit* to, long ld) {
  constexpr int MOST = (1 << std::min(DIGITS * DIGIT_BITS, 30)) - 1;
  float top = 0;
  bool finite = true;
  for (int p = from; p < until; ++p) {
    float& weight = weights[p - from];
    if (weight == 0) continue;
    weight *= cache.v_scales[cache.row(tile.blocks[p / cache.block], tile.group) + p % cache.block];
    finite &= weight < INFINITY;
    top = std::max(top, weight);
  }
  if (!finite) return NAN;
  const float scale = top / MOST > 0 ? top / MOST : 1.0f;
  const int width = (until - from + 3) / 4 * 4;
  for (int i = 0; i < width; ++i) {
    const float steps = from + i < until ? weights[i] / scale : 0.0f;
    const int32_t number = std::min(int32_t(steps + 0.5f), MOST);
    for (int d = 0; d < DIGITS; ++d)
      to[d * ld + i] = Digit(number >> (DIGITS - 1 - d) * DIGIT_BITS & (BASE - 1));
  }
  return scale;
}

#if NV_TILES
// As `score`, of all rows and positions from .. until - 1.
template <int R>
inline void score_by_tiles(const Tile& tile, const Cache& cache, const Operand* q, int from,
                           int until, float* scores, long lds) {
  constexpr int V = 4 / R;
  shape_tiles<R>(tile.rows, TILE);
  for (int p = from; p < until; p += V * TILE) {
    const uint8_t* columns[V];
    for (int v = 0; v < V; ++v) columns[v] = keys(tile, cache, p + v * TILE, TILE);
    ahead(tile, cache, p, V * TILE);
    const long stride = long(cache.block) * 4;
    multiply_tiles<R, V, false>(
        q, TILE * long(cache.dim) * 2, long(cache.dim) * 2,
        [&](int s, int v) { return columns[v] + s * TILE * stride; }, stride,
        cache.dim / (TILE * PAIR), TILE, [](int, int) {}, [&](auto c, int, int) { clear_tile<c>(); },
        [&](auto c, int r, int v) {
          store_tile<c>(scores + r * TILE * lds + (p - from) + v * TILE, lds * 4);
        });
  }
}

// As `mix`, of all rows and columns. Whatever lies behind the last position, it may be a NaN.
template <int R>
inline void mix_by_tiles(const Tile& tile, const Cache& cache, AttentionRoom& room, long ldw,
                         int from, int until) {
  const int pairs = cache.together() / PAIR, steps = (until - from) / cache.together();
  const int rest = (until - from) % cache.together();
  const long stride = long(cache.dim) * 4;
  if (rest) {
    room.tail.assign(pairs * cache.dim * PAIR, 0);
    std::memcpy(room.tail.data(), values(tile, cache, until - rest), (rest + 1) / PAIR * stride);
    if (rest % 2)
      for (int d = 0; d < cache.dim; ++d) room.tail[(long(rest / 2) * cache.dim + d) * PAIR + 1] = 0;
  }
  shape_tiles<R>(tile.rows, pairs);
  auto columns = [&](auto width, int column) {
    auto at = [&](int r, int v) {
      return room.sums.data() + r * TILE * long(cache.dim) + column + v * TILE;
    };
    multiply_tiles<R, width, false>(
        room.weights.data(), TILE * ldw * 2, ldw * 2,
        [&](int s, int v) {
          const uint8_t* row = s < steps ? values(tile, cache, from + s * cache.together())
                                         : reinterpret_cast<const uint8_t*>(room.tail.data());
          return row + (column + v * TILE) * 4;
        },
        stride, steps + (rest > 0), pairs, [](int, int) {},
        [&](auto c, int r, int v) { load_tile<c>(at(r, v), stride); },
        [&](auto c, int r, int v) { store_tile<c>(at(r, v), stride); });
  };
  int column = 0;
  for (; column + 4 / R * TILE <= cache.dim; column += 4 / R * TILE)
    columns(Int<4 / R>{}, column);
  for (; column < cache.dim; column += 2 * TILE) columns(Int<2>{}, column);
}
#endif

// Rows of a product of attention.
constexpr int attention_rows(bool codes) {
  return codes ? rows_at_once(DIGITS) : NV_TILES ? 2 * TILE : MAX_ROWS;
}

// The result is [outputs, lda] of H * used values a row, in `out`.
template <bool CODES>
inline void attend(const Tile& tile, const Cache& cache, const Queries& q, int tokens,
                   int group_heads, int used, float scale, int window, AttentionRoom& room,
                   Operand* out, long lda) {
  constexpr int MOST = attention_rows(CODES);
  const int align = cache.together();
  const int from = window ? std::max(0, tile.position - window + 1) / align * align : 0;
  auto whole = [](int count) { return (count + 4 * LANES - 1) / (4 * LANES) * (4 * LANES); };
  const long lds = whole(std::min(SEGMENT, tile.end() - from)) + LINE / 2;
  room.scores.resize(MOST * lds);
  room.sums.assign(MOST * cache.dim, 0.0f);
  if (CODES) room.digits.resize(MOST * DIGITS * lds);
  const long row = (long(tile.group) * tokens + tile.token) * group_heads + tile.head;
  Softmax softmax[MOST];
  float scales[MOST], *scores = room.scores.data(), *sums = room.sums.data();
  std::conditional_t<CODES, float, Operand>* weights;
  if constexpr (CODES || !NV_DOT) weights = scores;
  else room.weights.resize(MOST * lds), weights = room.weights.data();
  for (int begin = from; begin < tile.end(); begin += SEGMENT) {
    const int until = std::min(begin + SEGMENT, tile.end());
    const int width = whole(until - begin);
#if NV_TILES
    if constexpr (!CODES)
      (tile.rows <= TILE ? score_by_tiles<1> : score_by_tiles<2>)(
          tile, cache, q.values + row * cache.dim, begin, until, scores, lds);
    else
#endif
      with_rows<MOST>(tile.rows, [&](auto rows) {
        constexpr int M = decltype(rows)::value, V = vectors_for(CODES ? M * DIGITS : M);
        for (int p = begin; p < until; p += V * LANES)
          score<CODES, M, V>(tile, cache, q, row, begin, p, scores, lds);
      });
    for (int m = 0; m < tile.rows; ++m) {
      const int position = tile.position + m / tile.heads;
      const int low = window ? position - window + 1 - begin : 0;
      float* to = sums + m * long(cache.dim);
      const float again = softmax[m].add(
          scores + m * lds, std::clamp(low, 0, width), std::clamp(position + 1 - begin, 0, width),
          width, scale * LOG2_E, weights + m * lds);
      for (int d = 0; again != 1 && d < cache.dim; ++d) to[d] *= again;
    }
    if constexpr (CODES)
      for (int m = 0; m < tile.rows; ++m)
        scales[m] = weigh(tile, cache, begin, until, weights + m * lds,
                          &room.digits[m * DIGITS * lds], lds);
#if NV_TILES
    if constexpr (!CODES)
      (tile.rows <= TILE ? mix_by_tiles<1> : mix_by_tiles<2>)(tile, cache, room, lds, begin, until);
    else
#endif
      with_rows<MOST>(tile.rows, [&](auto rows) {
        constexpr int M = decltype(rows)::value, V = vectors_for(CODES ? M * DIGITS : M);
        int column = 0;
        for (; column + V * LANES <= cache.dim; column += V * LANES)
          mix<CODES, M, V>(tile, cache, room, weights, lds, begin, until, column, scales, sums);
        if constexpr (V > 2)
          for (; column < cache.dim; column += 2 * LANES)
            mix<CODES, M, 2>(tile, cache, room, weights, lds, begin, until, column, scales, sums);
      });
  }
  for (int m = 0; m < tile.rows; ++m) {
    const int head = tile.group * group_heads + tile.head + m % tile.heads;
    Operand* to = out + (tile.output + m / tile.heads) * lda + long(head) * used;
    const float inverse = 1.0f / softmax[m].total;
    float* from = sums + m * long(cache.dim);
    for (int d = 0; d < used; ++d) from[d] *= inverse;
    narrow(from, used, to);
  }
}
