// What Python hands over, and keeps alive: the model once, then one struct a step.
#pragma once
#include "linear.h"

struct Norm {
  const float *weight, *bias;  // a bias, and the mean taken off, where it is a LayerNorm
};

struct Layer {
  Norm input, post_attention;
  const float *q_norm, *k_norm;  // [D], or null
  Matrix qkv, output, up, down;  // `up` holds gate and up, LANES columns of each in turn, if gated
  int32_t window;                // 0: none
  Matrix router;          // [N, E]; behind the experts' rows that of the shared one's gate, if any
  const Matrix* experts;  // `up` and `down` of each, the shared one last; null: `up` and `down`
};

struct Model {
  const Layer* layers;
  int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim, padded_dim, vocab;
  int32_t gated;       // SwiGLU, else GELU
  int32_t layer_norm;  // LayerNorm, else RMSNorm
  int32_t quantized;   // whether any matrix is in codes
  int32_t num_experts, per_token, normalize, shared;  // 0 without experts; shared: 0 or 1
  int32_t widest;      // the size of the largest MLP, or expert
  float eps;
  const Stored* embedding;    // [V, E]
  const float* positions;     // [max_position, E], or null
  const float *cosine, *sine; // [max_position, D / 2], or null
  Norm norm;
  Matrix head;
};

struct Step {
  int32_t num_seqs, num_outputs, num_blocks, block_size, num_threads;
  const int32_t* token_ids;     // [T], the new tokens of all sequences, one after another
  const int32_t* query_starts;  // [N + 1]: where each sequence's new tokens begin
  const int32_t* context_lens;  // [N]: tokens of each sequence, the new ones included
  const int32_t* completes;     // [N]: of how many of its last tokens logits are wanted
  const int32_t* blocks;        // the blocks of all sequences, one after another
  const int32_t* block_starts;  // [N]: where each sequence's blocks begin
  uint8_t *k, *v;               // [L, B, ...], see attention.h
  float *k_scales, *v_scales;   // [L, B, ...], or null
  float* logits;                // [outputs, V]
  int32_t* tokens;              // [outputs]: the likeliest; -1 where there is a NaN
};
