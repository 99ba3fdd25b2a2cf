// Attention of a step's queries over the blocks of K and V that their sequences own.
#pragma once
#include "codes.h"
#include "softmax.h"

struct Token {
  int position, slot;
  bool last;  // of its sequence's new tokens
};

// One layer's K and V. Four bytes hold PAIR values of Stored, or 4 codes of 8 bits. K [B, G,
// D / values, P, values]: column vectors over positions. V [B, G, P / values, D, values]: column
// vectors over the head dimension. D is padded to a multiple of PANEL, P is a multiple of LANES.
// Codes stand for code * scale, the scales [B, G, P] apart; those of K are 128 more, without sign.
struct Cache {
  uint8_t *k, *v;              // of all layers
  float *k_scales, *v_scales;  // null: Stored
  int32_t groups, dim, block;
  long first;  // the layer's first block among those of all layers

  int values() const { return k_scales ? 4 : PAIR; }
  long size() const { return long(dim) * block / values() * 4; }  // bytes, of one block and group
  long at(int id, int group) const { return ((first + id) * groups + group) * size(); }
  long row(int id, int group) const { return ((first + id) * groups + group) * block; }
  int together() const { return block % (2 * TILE) ? TILE : 2 * TILE; }  // positions in one product

  void write(const Token& token, int group, const float* key, const float* value, int used) {
    const int id = token.slot / block, offset = token.slot % block;
    uint8_t *to_k = k + at(id, group) + offset * 4, *to_v = v + at(id, group);
    to_v += offset / values() * long(dim) * 4 + offset % values() * (4 / values());
    if (k_scales) {
      const long one = row(id, group) + offset;
      k_scales[one] = encode(key, used, 128, to_k, long(block) * 4, 1);
      v_scales[one] = encode(value, used, 0, to_v, 16, 4);
      return;
    }
    Stored keys[LANES]{}, values[LANES], *column = reinterpret_cast<Stored*>(to_v);
    for (int d = 0; d < used; d += LANES) {
      const int count = std::min(LANES, used - d);
      narrow(key + d, count, keys);
      narrow(value + d, count, values);
      for (int i = 0; i < count; i += PAIR)
        store(to_k + (d + i) / PAIR * long(block) * 4, load<int32_t>(keys + i));
      for (int i = 0; i < count; ++i) column[(d + i) * PAIR] = values[i];
    }
    // A product always takes whole pairs of positions: what another request left next to the
    // last token must not be a NaN.
    if (token.last && PAIR == 2 && offset % 2 == 0)
      for (int d = 0; d < used; ++d) column[d * PAIR + 1] = 0;
  }

 private:
  // Lab 09's rows of int8. Four codes lie `step` apart, the next four `stride` behind them. Returns
  // the scale, which is NaN where a value is NaN.
  static float encode(const float* x, int used, int middle, uint8_t* to, long stride, int step) {
    const float scale = largest_size(x, used) / 127.0f, divisor = scale > 0 ? scale : 1.0f;
    for (int d = 0; d < used; ++d) {
      const float code = std::max(-127.0f, std::min(127.0f, std::rint(x[d] / divisor)));
      to[d / 4 * stride + d % 4 * step] = uint8_t(int(code) + middle);
    }
    return scale;
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

// Vectors that are worked on together, for so many rows.
constexpr int vectors_for(int rows) { return LANES < 16 ? 1 : rows <= 5 ? 4 : 2; }

// Positions that are worked on together: their scores and K and V stay near, and sums of products
// of whole numbers fit into 32 bits.
constexpr int SEGMENT = 512;

// Rows of a product of attention.
constexpr int attention_rows(bool codes) {
  return codes ? rows_at_once(DIGITS) : NV_TILES ? 2 * TILE : MAX_ROWS;
}

// What all tiles of a layer have to do with. The H / G query heads of a group have `used` values
// each, filled up to D.
struct Heads {
  Cache cache;
  const Rows<Operand>& q;   // [G, T, H / G, D]
  const DigitRoom& digits;  // the same, with codes in the cache
  int tokens, each, used;  // T, H / G
  float scale;
  int window;             // 0: none
  Rows<Operand>& result;  // [outputs, H * used]

  // The first position that a tile reads: those before the window are none of its.
  int begin(const Tile& tile) const {
    const int align = cache.together(), seen = window ? window : tile.end();
    return std::max(0, tile.position - seen + 1) / align * align;
  }
};

// Asks for K and V of some tiles, one after another, while they are read. Into the second-level
// cache, as in `Ahead`, and 32 KB ahead of what is read, so that memory always has enough to do.
struct Lookahead {
  const Heads& all;
  const Tile *tile, *end;
  int position = all.begin(*tile);  // of the tile, that is asked for next
  int owed = 16 * 1024 / all.cache.size() * all.cache.block;

  // So many positions are read: as many more are asked for.
  void read(int count) {
    const Cache& cache = all.cache;
    for (owed += count; owed > 0 && tile < end; owed -= cache.block) {
      const long at = cache.at(tile->blocks[position / cache.block], tile->group);
      for (long i = 0; i < cache.size(); i += LINE)
        __builtin_prefetch(cache.k + at + i, 0, 2), __builtin_prefetch(cache.v + at + i, 0, 2);
      position = (position / cache.block + 1) * cache.block;
      if (position >= tile->end() && ++tile < end) position = all.begin(*tile);
    }
  }
};

// Room for one thread's scores, kept from step to step.
struct AttentionRoom {
  Rows<float> scores, sums;  // sums [M, D]
  Rows<Operand> weights, tail;
  Rows<std::make_unsigned_t<Digit>> digits;  // of weights
};

// Attention of one tile, one segment of positions after another. CODES: with codes in the cache,
// queries and weights are digits.
template <bool CODES>
struct Attention {
  const Heads& all;
  const Tile& tile;
  Lookahead& ahead;
  AttentionRoom& room;

  static constexpr int MOST = attention_rows(CODES), EACH_ROW = CODES ? DIGITS : 1;
  static constexpr int VALUES = CODES ? 4 : PAIR;
  static constexpr bool TILES = NV_TILES && !CODES;
  using Sum = std::conditional_t<CODES, vint, vfloat>;

  const Cache& cache = all.cache;
  const long row = (long(tile.group) * all.tokens + tile.token) * all.each + tile.head;  // of q
  int from = 0, until = 0;  // the segment
  float scales[MOST] = {};  // of the weights' digits

  // Where position p is: its column of K, the pair or four of positions of V, its scales.
  const uint8_t* key(int p) const { return block(cache.k, p) + p % cache.block * 4; }
  const uint8_t* value(int p) const {
    return block(cache.v, p) + long(p % cache.block / VALUES) * cache.dim * 4;
  }
  const uint8_t* block(const uint8_t* of, int p) const {
    return of + cache.at(tile.blocks[p / cache.block], tile.group);
  }
  long scale_of(int p) const {
    return cache.row(tile.blocks[p / cache.block], tile.group) + p % cache.block;
  }

  // A position of `width` that are read together; behind the last ones, that of those.
  int near(int p, int width) const { return std::min(p, (tile.end() - 1) / width * width); }

  // The queries, what softmax makes of scores, and what V is multiplied with.
  auto* queries() const {
    if constexpr (CODES) return all.digits.digits[row * DIGITS];
    else return all.q[row];
  }
  auto& weights() const {
    if constexpr (CODES || !NV_DOT) return room.scores;
    else return room.weights;
  }
  auto& factors() const {
    if constexpr (CODES) return room.digits;
    else return weights();
  }

  // Scores of M queries, and V vectors of positions.
  template <int M, int V>
  INLINE void score(int position) {
    const uint8_t* columns[V];
    const float* k_scales[V];
    for (int v = 0; v < V; ++v) {
      const int p = near(position + v * LANES, LANES);
      columns[v] = key(p);
      if (CODES) k_scales[v] = cache.k_scales + scale_of(p);
    }
    ahead.read(std::min(V * LANES, until - position));
    Sum acc[M * EACH_ROW][V]{};
    multiply(acc, queries(), cache.dim, columns, long(cache.block) * 4, cache.dim / VALUES);
    float* to = room.scores[0] + (position - from);
    const long ld = room.scores.ld;
    if constexpr (CODES) {
      const float *numbers = &all.digits.sums[row], *each = &all.digits.scales[row];
      repeat<M, V>(EACH(m, auto v) {
        const vfloat total = numbers_of<DIGITS, false>(acc, m, v) - 128.0f * numbers[m];
        store(to + m * ld + v * LANES, total * each[m] * load<vfloat>(k_scales[v]));
      });
    } else {
      repeat<M, V>(EACH(m, auto v) { store(to + m * ld + v * LANES, acc[m][v]); });
    }
  }

  // Adds V of the segment, each times its weight, to V vectors of the sums of M rows.
  template <int M, int V>
  INLINE void mix(int column) {
    Sum acc[M * EACH_ROW][V]{};
    for (int p = from, end; p < until; p = end) {
      end = std::min(until, (p / cache.block + 1) * cache.block);
      const uint8_t* const columns[] = {value(p) + column * 4};
      multiply(acc, factors()[0] + (p - from), factors().ld, columns, long(cache.dim) * 4,
               (end - p + VALUES - 1) / VALUES);
    }
    float* sums = room.sums[0] + column;
    repeat<M, V>(EACH(m, auto v) {
      float* to = sums + m * long(cache.dim) + v * LANES;
      if constexpr (CODES)
        store(to, load<vfloat>(to) + numbers_of<DIGITS, false>(acc, m, v) * scales[m]);
      else
        store(to, load<vfloat>(to) + acc[m][v]);
    });
  }

  // f(V, column) for V vectors of columns at a time, or tiles; then for two.
  template <int V, class F>
  INLINE void each_columns(int width, F f) {
    int column = 0;
    for (; column + V * width <= cache.dim; column += V * width) f(Int<V>{}, column);
    if constexpr (V > 2)
      for (; column < cache.dim; column += 2 * width) f(Int<2>{}, column);
  }

  // A row of weights times the scales of V becomes digits without sign; returns the numbers' scale.
  float weigh(int m) {
    constexpr int most = (1 << DIGITS * DIGIT_BITS) - 1;
    float *weights = room.scores[m], unused;
    for (int p = from, end; p < until; p = end) {
      end = std::min(until, (p / cache.block + 1) * cache.block);
      const float* v_scales = cache.v_scales + scale_of(p);
#pragma GCC ivdep
      for (int i = 0; i < end - p; ++i) {
        float& weight = weights[p - from + i];
        weight = weight == 0 ? 0 : weight * v_scales[i];  // there may be none where nobody looks
      }
    }
    return to_digits(weights, until - from, DIGITS, most, SEGMENT, room.digits[m * DIGITS],
                     room.digits.ld, &unused);
  }

  // As `score`, of all rows and the whole segment.
  template <int R>
  void score_by_tiles() {
    constexpr int V = 4 / R;
    const long lda = all.q.ld * sizeof(Operand), stride = long(cache.block) * 4;
    shape_tiles<R>(tile.rows, TILE);
    for (int p = from; p < until; p += V * TILE) {
      const uint8_t* columns[V];
      for (int v = 0; v < V; ++v) columns[v] = key(near(p + v * TILE, TILE));
      ahead.read(std::min(V * TILE, until - p));
      multiply_tiles<R, V, false>(
          all.q[row], TILE * lda, lda,
          [&](int s, int v) { return columns[v] + s * TILE * stride; }, stride,
          cache.dim / (TILE * PAIR), TILE, [](int, int) {},
          [](auto c, int, int) { clear_tile<c>(); },
          [&](auto c, int r, int v) {
            store_tile<c>(room.scores[r * TILE] + (p - from) + v * TILE, room.scores.ld * 4);
          });
    }
  }

  // As `mix`, of all rows and columns. Whatever lies behind the last position, it may be a NaN.
  template <int R>
  void mix_by_tiles() {
    const int together = cache.together(), pairs = together / PAIR;
    const int steps = (until - from) / together, rest = (until - from) % together;
    const long lda = room.weights.ld * sizeof(Operand), stride = long(cache.dim) * 4;
    if (rest) {
      room.tail.clear();
      room.tail.fit(pairs, cache.dim * PAIR);
      std::memcpy(room.tail[0], value(until - rest), (rest + 1) / PAIR * stride);
      if (rest % 2)
        for (int d = 0; d < cache.dim; ++d) room.tail[rest / 2][d * PAIR + 1] = 0;
    }
    shape_tiles<R>(tile.rows, pairs);
    each_columns<4 / R>(TILE, [&](auto width, int column) {
      auto at = [&](int r, int v) { return room.sums[r * TILE] + column + v * TILE; };
      auto right = [&](int s, int v) {
        const uint8_t* row = s < steps ? value(from + s * together)
                                       : reinterpret_cast<const uint8_t*>(room.tail[0]);
        return row + (column + v * TILE) * 4;
      };
      multiply_tiles<R, width, false>(
          room.weights[0], TILE * lda, lda, right, stride, steps + (rest > 0), pairs,
          [](int, int) {}, [&](auto c, int r, int v) { load_tile<c>(at(r, v), stride); },
          [&](auto c, int r, int v) { store_tile<c>(at(r, v), stride); });
    });
  }

  void attend() {
    const int seen = all.window ? all.window : tile.end(), begin = all.begin(tile);
    auto whole = [](int count) { return (count + 4 * LANES - 1) / (4 * LANES) * (4 * LANES); };
    const long ld = whole(std::min(SEGMENT, tile.end() - begin)) + LINE / 2;
    room.scores.fit(MOST, ld);
    weights().fit(MOST, ld);
    if (CODES) room.digits.fit(MOST * DIGITS, ld);
    room.sums.clear();
    room.sums.fit(MOST, cache.dim);
    Softmax softmax[MOST];
    for (from = begin; from < tile.end(); from = until) {
      until = std::min(from + SEGMENT, tile.end());
      const int width = whole(until - from);
      if constexpr (TILES)
        tile.rows <= TILE ? score_by_tiles<1>() : score_by_tiles<2>();
      else
        with_rows<MOST>(tile.rows, [&](auto M) {
          constexpr int V = vectors_for(M * EACH_ROW);
          for (int p = from; p < until; p += V * LANES) score<M, V>(p);
        });
      for (int m = 0; m < tile.rows; ++m) {
        const int position = tile.position + m / tile.heads;
        auto inside = [&](int p) { return std::clamp(p - from, 0, width); };
        const float again =
            softmax[m].add(room.scores[m], inside(position - seen + 1), inside(position + 1), width,
                           all.scale * LOG2_E, weights()[m]);
        for (int d = 0; again != 1 && d < cache.dim; ++d) room.sums[m][d] *= again;
        if constexpr (CODES) scales[m] = weigh(m);
      }
      if constexpr (TILES)
        tile.rows <= TILE ? mix_by_tiles<1>() : mix_by_tiles<2>();
      else
        with_rows<MOST>(tile.rows, [&](auto M) {
          each_columns<vectors_for(M * EACH_ROW)>(
              LANES, [&](auto V, int column) { mix<M, V>(column); });
        });
    }
    for (int m = 0; m < tile.rows; ++m) {
      const int head = tile.group * all.each + tile.head + m % tile.heads;
      const float inverse = 1.0f / softmax[m].total;
      for (int d = 0; d < all.used; ++d) room.sums[m][d] *= inverse;
      Operand* to = all.result[tile.output + m / tile.heads] + long(head) * all.used;
      narrow(room.sums[m], all.used, to);
    }
  }
};
