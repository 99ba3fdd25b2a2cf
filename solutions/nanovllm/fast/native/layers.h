// The parts of a layer that work on one token alone.
#pragma once
#include "attention.h"
#include "model.h"

// The result of what came before, if any, is added to the residual x, and that is normalised.
inline void normalise(const Model& model, const Norm& norm, float* x, const float* result,
                      Operand* to) {
  const int size = model.hidden;
  for (int i = 0; result && i < size; ++i) x[i] += result[i];
  float mean = 0, square = 0;
  if (model.layer_norm) {
#pragma omp simd reduction(+ : mean)
    for (int i = 0; i < size; ++i) mean += x[i];
    mean /= size;
  }
#pragma omp simd reduction(+ : square)
  for (int i = 0; i < size; ++i) square += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(square / size + model.eps);
  for (int i = 0; i < size; ++i)
    narrow((x[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f), to[i]);
}

// In place: RMSNorm over a head, then the halves turned by the token's angles.
inline void turn_head(const Model& model, const float* norm, float* x, int position) {
  const int size = model.head_dim, half = size / 2;
  if (norm) {
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int i = 0; i < size; ++i) square += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(square / size + model.eps);
    for (int i = 0; i < size; ++i) x[i] *= scale * norm[i];
  }
  if (!model.cosine) return;
  const float *c = model.cosine + long(position) * half, *s = model.sine + long(position) * half;
#pragma GCC ivdep
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * c[i] - b * s[i];
    x[i + half] = b * c[i] + a * s[i];
  }
}

// Token t's q, k and v: turned; q to its place for attention, k and v into the cache.
inline void place(const Model& model, const Layer& layer, Cache& cache, const Token& token, int t,
                  int tokens, float* qkv, Rows<Operand>& q, DigitRoom& digits) {
  const int heads = model.num_heads / model.num_kv_heads, dim = model.head_dim;
  float* k = qkv + long(model.num_heads) * dim;
  const float* v = k + long(model.num_kv_heads) * dim;
  for (int g = 0; g < model.num_kv_heads; ++g, k += dim, v += dim) {
    for (int h = 0; h < heads; ++h, qkv += dim) {
      turn_head(model, layer.q_norm, qkv, token.position);
      const long row = (long(g) * tokens + t) * heads + h;
      narrow(qkv, dim, q[row]);
      if (cache.k_scales) digits.fill(row, q[row], q.ld, DIGITS, largest(DIGITS), q.ld);
    }
    turn_head(model, layer.k_norm, k, token.position);
    cache.write(token, g, k, v, dim);
  }
}

// x / (1 + e^-z)
inline vfloat gate(vfloat x, vfloat z) {
  return x / (1.0f + exp2(-LOG2_E * larger(-88.0f - vfloat{}, z)));
}

inline vfloat silu(vfloat x) { return gate(x, x); }

// The tanh form; (1 + tanh(z)) / 2 = 1 / (1 + e^-2z)
inline vfloat gelu(vfloat x) { return gate(x, 1.5957691216f * (x + 0.044715f * x * x * x)); }

// A panel of the first MLP matrix's result becomes columns of the second one's input.
inline void activate(const Model& model, int size, int column, const float* sums, Operand* row) {
  const int width = model.gated ? LANES : PANEL, first = model.gated ? column / 2 : column;
  float out[PANEL];
  const vfloat a = load<vfloat>(sums), b = load<vfloat>(sums + LANES);
  store(out, model.gated ? silu(a) * b : gelu(a));
  if (!model.gated) store(out + LANES, gelu(b));
  narrow(out, std::min(width, size - first), row + first);
}

inline int32_t likeliest(const float* logits, int size) {
  float most = -INFINITY;
  bool broken = false;
#pragma omp simd reduction(max : most) reduction(| : broken)
  for (int i = 0; i < size; ++i)
    most = logits[i] > most ? logits[i] : most, broken |= logits[i] != logits[i];
  if (broken || std::isinf(most)) return -1;
  return std::find(logits, logits + size, most) - logits;
}
