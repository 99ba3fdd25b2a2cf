// Where a step's numbers are on their way through, and what there is to do for attention.
#pragma once
#include "attention.h"
#include "experts.h"
#include "team.h"

// Rows of a left operand begin with a line, and must not fall on the same cache sets: no power of
// two between them.
inline long row_length(long size) { return padded(size) + LINE / sizeof(Operand); }

// Kept from step to step, and grown when a step needs more.
struct Room {
  Rows<float> x, qkv, result;  // [T, E], [T, (H + 2 G) D], [T or outputs, E]
  Rows<Operand> a, h, q;       // [T, E], [T or R, max(H D, widest)], [G, T, H / G, D]
  std::vector<Token> tokens;
  std::vector<int> runs;  // where tokens begin that lie in one block, and where the last end
  std::vector<Tile> tiles, final_tiles;
  std::vector<int> output_rows;
  std::vector<AttentionRoom> threads;
  DigitRoom digits, queries;  // the latter where K is in codes
  Visits visits;              // of experts
  std::vector<Loop> loops;    // of one step: no more than a few for each layer

  void fit(const Model& model, const Step& step) {
    const long count = step.query_starts[step.num_seqs], each = model.per_token + model.shared;
    const int longest = std::max(model.widest, model.num_heads * model.head_dim);
    x.fit(count, model.hidden);
    qkv.fit(count, padded(long(model.num_heads + 2 * model.num_kv_heads) * model.head_dim));
    result.fit(count, padded(model.hidden));
    a.fit(count, row_length(model.hidden));
    h.fit(count * std::max(1L, each), row_length(longest));
    if (each) visits.fit(count, model.num_experts + model.shared, each, a.ld, result.ld);
    if (model.padded_dim != model.head_dim) q.clear();  // what D is filled up with must be zero
    q.fit(count * model.num_heads, model.padded_dim);
    if (step.k_scales) queries.fit(count * model.num_heads, model.padded_dim, 0);
    threads.resize(step.num_threads);
    if (model.quantized)
      digits.fit(count, (std::max(longest, model.hidden) + LINE - 1) / LINE * LINE, LINE);
    loops = std::vector<Loop>(16 * model.num_layers + 4);
    place_tokens(model, step);
  }

 private:
  // The last layer's results are wanted for few tokens: those whose logits are.
  void place_tokens(const Model& model, const Step& step) {
    const int groups = model.num_kv_heads, heads = model.num_heads / groups, size = step.block_size;
    const int most = attention_rows(step.k_scales);
    tokens.clear(), runs.clear(), tiles.clear(), final_tiles.clear(), output_rows.clear();
    for (int n = 0; n < step.num_seqs; ++n) {
      const int first = step.query_starts[n], last = step.query_starts[n + 1] - 1;
      const int end = step.context_lens[n], start = end - (last - first + 1);
      const int32_t* blocks = step.blocks + step.block_starts[n];
      for (int p = start; p < end; ++p) {
        if (p == start || p % size == 0) runs.push_back(int(tokens.size()));
        tokens.push_back({p, blocks[p / size] * size + p % size, p == end - 1});
      }
      add_tiles(tiles, groups, heads, first, first, end - start, start, blocks, most);
      const int rows = step.completes[n];
      const int row = last - rows + 1;
      add_tiles(final_tiles, groups, heads, row, int(output_rows.size()), rows, end - rows, blocks,
                most);
      for (int t = row; t <= last; ++t) output_rows.push_back(t);
    }
    runs.push_back(int(tokens.size()));
    // Long ones first, so that no thread is left with one at the end.
    auto longer = [](const Tile& one, const Tile& other) { return one.end() > other.end(); };
    std::stable_sort(tiles.begin(), tiles.end(), longer);
  }
};
