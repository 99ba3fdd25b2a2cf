// Attention of a step's queries over the blocks of K and V that their sequences own.
#pragma once
#include <vector>

#include "product.h"
#include "softmax.h"

// One layer's K and V. K [B, G, D / PAIR, P, PAIR]: column vectors over positions. V [B, G,
// P / PAIR, D, PAIR]: column vectors over the head dimension. D is padded to a multiple of
// PANEL, P is a multiple of LANES.
struct Cache {
  Stored *k, *v;
  int32_t groups, dim, block;

  long size() const { return long(dim) * block; }  // of one block of one group
  long at(int id, int group) const { return (long(id) * groups + group) * size(); }

  void write(int slot, int group, const float* key, const float* value, int used, bool last) {
    const int offset = slot % block;
    Stored* k_to = k + at(slot / block, group) + offset * PAIR;
    Stored* v_to = v + at(slot / block, group) + offset / PAIR * long(dim) * PAIR + offset % PAIR;
    for (int d = 0; d < used; ++d) {
      narrow(key[d], k_to[d / PAIR * long(block) * PAIR + d % PAIR]);
      narrow(value[d], v_to[d * PAIR]);
    }
    // A product always takes whole pairs of positions: what another request left next to the
    // last token must not be a NaN.
    if (last && PAIR == 2 && offset % 2 == 0)
      for (int d = 0; d < used; ++d) v_to[d * PAIR + 1] = 0;
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

// Cuts the queries tokens first .. first + count - 1 of a sequence into tiles.
inline void add_tiles(std::vector<Tile>& tiles, int groups, int heads, int token, int output,
                      int count, int position, const int32_t* blocks) {
  const int at_once = std::min(heads, MAX_ROWS), tokens = std::max(1, MAX_ROWS / heads);
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
  const long line = 64 / sizeof(Stored);
  for (int p = position; p < position + count; p += cache.block) {
    if (p < tile.end()) {
      const Stored* from = cache.v + cache.at(tile.blocks[p / cache.block], tile.group);
      for (long i = 0; i < cache.size(); i += line) __builtin_prefetch(from + i);
    }
    const int next = p + count;
    if (next < tile.end()) {
      const Stored* from = cache.k + cache.at(tile.blocks[next / cache.block], tile.group);
      for (long i = 0; i < cache.size(); i += line) __builtin_prefetch(from + i);
    }
  }
}

template <int M, int V>
INLINE void score(const Tile& tile, const Cache& cache, const Operand* q, float scale, int from,
                  int position, float* scores, long lds) {
  vfloat acc[M][V];
  repeat<M>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] = vfloat{}; }); });
  const Stored* columns[V];
  for (int v = 0; v < V; ++v) {
    const int p = std::min(position + v * LANES, (tile.end() - 1) / LANES * LANES);
    const long block = cache.at(tile.blocks[p / cache.block], tile.group);
    columns[v] = cache.k + block + p % cache.block * PAIR;
  }
  ahead(tile, cache, position, V * LANES);
  multiply<M, V, 1>(acc, q, cache.dim, columns, long(cache.block) * PAIR, cache.dim / PAIR);
  float* to = scores + (position - from);
  repeat<M>(EACH(m) {
    repeat<V>(EACH(v) { store(to + m * lds + v * LANES, acc[m][v] * scale); });
  });
}

template <int M, int V>
INLINE void mix(const Tile& tile, const Cache& cache, const Operand* weights, long ldw, int from,
                int column, const float* inverse, float* sums) {
  vfloat acc[M][V];
  repeat<M>(EACH(m) { repeat<V>(EACH(v) { acc[m][v] = vfloat{}; }); });
  for (int p = from; p < tile.end();) {
    const int until = std::min(tile.end(), (p / cache.block + 1) * cache.block);
    const Stored* base = cache.v + cache.at(tile.blocks[p / cache.block], tile.group) +
                         (long(p % cache.block / PAIR) * cache.dim + column) * PAIR;
    multiply<M, V, V>(acc, weights + (p - from), ldw, {base}, long(cache.dim) * PAIR,
                   (until - p + PAIR - 1) / PAIR);
    p = until;
  }
  repeat<M>(EACH(m) {
    repeat<V>(EACH(v) {
      store(sums + m * long(cache.dim) + column + v * LANES, acc[m][v] * inverse[m]);
    });
  });
}

// Room for one thread's scores, kept from step to step.
struct AttentionRoom {
  std::vector<float> scores, sums;
  std::vector<Operand> weights;
};

// q [G, T, H / G, D]; the result [outputs, lda] of H * used values a row, in `out`.
inline void attend(const Tile& tile, const Cache& cache, const Operand* q, int tokens,
                   int group_heads, int used, float scale, int window, AttentionRoom& room,
                   Operand* out, long lda) {
  int from = window ? std::max(0, tile.position - window + 1) / LANES * LANES : 0;
  const int width = (tile.end() - from + 4 * LANES - 1) / (4 * LANES) * (4 * LANES);
  const long lds = width + LANES;
  room.scores.resize(MAX_ROWS * lds);
  room.sums.resize(MAX_ROWS * cache.dim);
  const Operand* left =
      q + ((long(tile.group) * tokens + tile.token) * group_heads + tile.head) * cache.dim;
  float inverse[MAX_ROWS];
  float* scores = room.scores.data();
  with_rows<MAX_ROWS>(tile.rows, [&](auto rows) {
    constexpr int M = decltype(rows)::value, V = LANES < 16 ? 1 : M <= 5 ? 4 : 2;
    for (int p = from; p < tile.end(); p += V * LANES)
      score<M, V>(tile, cache, left, scale, from, p, scores, lds);
  });
  for (int m = 0; m < tile.rows; ++m) {
    const int position = tile.position + m / tile.heads;
    const int low = window ? std::max(0, position - window + 1) : 0;
    inverse[m] = soften(scores + m * lds, low - from, position + 1 - from, width);
  }
#if NV_DOT
  room.weights.resize(MAX_ROWS * lds);
  for (long i = 0; i < tile.rows * lds; ++i) narrow(scores[i], room.weights[i]);
  const Operand* weights = room.weights.data();
#else
  const Operand* weights = scores;
#endif
  with_rows<MAX_ROWS>(tile.rows, [&](auto rows) {
    constexpr int M = decltype(rows)::value, V = LANES < 16 ? 1 : M <= 5 ? 4 : 2;
    int column = 0;
    for (; column + V * LANES <= cache.dim; column += V * LANES)
      mix<M, V>(tile, cache, weights, lds, from, column, inverse, room.sums.data());
    if constexpr (V > 2)
      for (; column < cache.dim; column += 2 * LANES)
        mix<M, 2>(tile, cache, weights, lds, from, column, inverse, room.sums.data());
  });
  for (int m = 0; m < tile.rows; ++m) {
    const int head = tile.group * group_heads + tile.head + m % tile.heads;
    Operand* to = out + (tile.output + m / tile.heads) * lda + long(head) * used;
    for (int d = 0; d < used; ++d) narrow(room.sums[m * long(cache.dim) + d], to[d]);
  }
}
