// A mixture of experts: whom each token visits, and the visits of each expert side by side.
#pragma once
#include <numeric>

#include "model.h"

// One token's visit to one expert, what its result counts there, and its row among all visits.
struct Visit {
  float weight;
  int32_t expert, row;
};

// The experts of a step's tokens, from place to place: V visits a token, R rows in all.
struct Visits {
  Rows<float> logits, out;      // [T, N], [R, E]
  std::vector<Visit> all;       // [T, V]
  std::vector<int32_t> starts;  // [N + 1]: the first row of each expert
  Rows<Operand> a;              // [R, E]

  void fit(long tokens, long experts, long each, long lda, long ldr) {
    logits.fit(tokens, padded(experts));
    all.resize(tokens * each);
    starts.resize(experts + 1);
    out.fit(tokens * each, ldr);
    a.fit(tokens * each, lda);
  }

  // The k likeliest of a token, in place of which NaN chooses some; then the shared one, if any.
  void route(const Model& model, int token) {
    const int count = model.num_experts, k = model.per_token;
    float* p = logits[token];
    Visit* to = &all[long(token) * (k + model.shared)];
    const float most = *std::max_element(p, p + count);
    float sum = 0, chosen = 0;
    for (int e = 0; e < count; ++e) sum += p[e] = std::exp(p[e] - most);
    for (int i = 0; i < k; ++i) {
      float* best = std::max_element(p, p + count);
      to[i].expert = int32_t(best - p);
      chosen += to[i].weight = *best / sum;
      *best = -1.0f;
    }
    for (int i = 0; model.normalize && i < k; ++i) to[i].weight /= chosen;
    if (model.shared) to[k] = {1.0f / (1.0f + std::exp(-p[count])), count, 0};
  }

  // Rows of expert 0 first, those of one expert in the order of their tokens.
  void sort(int visits) {
    std::fill(starts.begin(), starts.end(), 0);
    for (int v = 0; v < visits; ++v) ++starts[all[v].expert + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    std::vector<int32_t> next(starts.begin(), starts.end());
    for (int v = 0; v < visits; ++v) all[v].row = next[all[v].expert]++;
  }
};
