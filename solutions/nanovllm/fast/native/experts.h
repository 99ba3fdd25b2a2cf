// A mixture of experts: whom each token visits, and the visits of each expert side by side.
#pragma once
#include "model.h"

// The experts of a step's tokens, from place to place: V visits a token, R rows in all.
struct Visits {
  Lines<float> logits, out;                    // [T, N], [R, E]
  std::vector<float> weights;                  // [T, V]
  std::vector<int32_t> experts, rows, starts;  // [T, V], [T, V]: the row of each; [N + 1]
  Lines<Operand> a;                            // [R, lda]

  void fit(long tokens, long all, long each, long lda, long hidden) {
    logits.resize(tokens * padded(all));
    weights.resize(tokens * each);
    experts.resize(tokens * each);
    rows.resize(tokens * each);
    starts.resize(all + 1);
    out.resize(tokens * each * padded(hidden));
    a.resize(tokens * each * lda);
  }

  // The k likeliest of a token, in place of which NaN chooses some; then the shared one, if any.
  void route(const Model& model, int token) {
    const int count = model.num_experts, k = model.per_token, each = k + model.shared;
    float* p = &logits[token * padded(count + model.shared)];
    float* weight = &weights[long(token) * each];
    int32_t* expert = &experts[long(token) * each];
    const float most = *std::max_element(p, p + count);
    float all = 0, chosen = 0;
    for (int e = 0; e < count; ++e) all += p[e] = std::exp(p[e] - most);
    for (int i = 0; i < k; ++i) {
      float* best = std::max_element(p, p + count);
      expert[i] = int32_t(best - p);
      chosen += weight[i] = *best / all;
      *best = -1.0f;
    }
    for (int i = 0; model.normalize && i < k; ++i) weight[i] /= chosen;
    if (model.shared) expert[k] = count, weight[k] = 1.0f / (1.0f + std::exp(-p[count]));
  }

  // Rows of expert 0 first, those of one expert in the order of their tokens.
  void sort(int tokens, int all, int each) {
    std::fill(starts.begin(), starts.end(), 0);
    for (int v = 0; v < tokens * each; ++v) ++starts[experts[v] + 1];
    for (int e = 0; e < all; ++e) starts[e + 1] += starts[e];
    std::vector<int32_t> next(starts.begin(), starts.end());
    for (int v = 0; v < tokens * each; ++v) rows[v] = next[experts[v]]++;
  }
};
