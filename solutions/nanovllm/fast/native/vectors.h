// Vectors of floats, and the two number formats that weights and the cache may have.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, MAX_ROWS = 12;
#elif defined(__AVX2__)
constexpr int LANES = 8, MAX_ROWS = 5;
#else
constexpr int LANES = 4, MAX_ROWS = 10;
#endif

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));

// NV_BFLOAT16: weights, K and V are bfloat16, and two of them that follow each other along the
// inner dimension of a product lie side by side (PAIR), as the dot instruction of AVX512_BF16
// wants it. Without that instruction a pair is two shifts away from two floats.
#ifdef NV_BFLOAT16
typedef uint16_t Stored;
constexpr int PAIR = 2;
#else
typedef float Stored;
constexpr int PAIR = 1;
#endif

// With the dot instruction the left side of a product is bfloat16, too. NV_EMULATE_DOT takes the
// same path without it, for tests on machines that have none.
#if defined(NV_BFLOAT16) && (defined(__AVX512BF16__) || defined(NV_EMULATE_DOT))
#define NV_DOT 1
typedef uint16_t Operand;
#else
#define NV_DOT 0
typedef float Operand;
#endif

constexpr float LOG2_E = 1.44269504f;
constexpr int32_t HIGH = int32_t(0xffff0000);  // of a pair, as a float
constexpr int LINE = 64;  // bytes that come from memory together

// Rows of numbers, `ld` apart; the first begins with a line of memory, and behind the last one
// there is room for a vector more.
template <class T>
class Rows {
  struct alignas(LINE) Line {
    char bytes[LINE];
  };
  std::vector<Line> lines_;

 public:
  long ld = 0;

  T* operator[](long row) { return reinterpret_cast<T*>(lines_.data()) + row * ld; }
  const T* operator[](long row) const { return const_cast<Rows&>(*this)[row]; }
  void clear() { lines_.clear(); }

  // What is new is zero.
  void fit(long rows, long apart) {
    ld = apart;
    lines_.resize(rows * ld * sizeof(T) / LINE + 2);
  }
};

template <class V, class T>
inline V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V, class T>
inline void store(T* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

// Past the caches, to where a line begins or goes on. Other threads see it behind a locked
// instruction, such as the counter of a loop is (team.h).
inline void stream(float* to, vfloat x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, (__m256)x);
#else
  store(to, x);
#endif
}

inline vfloat to_floats(vint x) { return __builtin_convertvector(x, vfloat); }

// To the nearest whole number, ties to even.
inline vint nearest(vfloat x) {
#if defined(__AVX512F__)
  return (vint)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (vint)_mm256_cvtps_epi32((__m256)x);
#else
  vint number;
  for (int i = 0; i < LANES; ++i) number[i] = int32_t(std::rint(x[i]));
  return number;
#endif
}

inline float widen(float x) { return x; }

inline float widen(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  return load<float>(&bits);
}

// To the nearest, ties to even; NaN stays NaN.
inline void narrow(float x, uint16_t& y) {
  const uint32_t bits = load<uint32_t>(&x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  y = x != x ? 0x7fc0 : uint16_t(rounded);
}

inline void narrow(float x, float& y) { y = x; }

// LANES floats. The instruction takes numbers below 2^-126 for zero.
inline void narrow(vfloat x, float* to) { store(to, x); }
inline void narrow(vfloat x, uint16_t* to) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  for (int i = 0; i < LANES; ++i) narrow(x[i], to[i]);
#endif
}

template <class T>
inline void narrow(const float* from, long count, T* to) {
  long i = 0;
  for (; i + LANES <= count; i += LANES) narrow(load<vfloat>(from + i), to + i);
  for (; i < count; ++i) narrow(from[i], to[i]);
}

// sum + a pair of values times a pair in each lane.
inline vfloat dot(vfloat sum, int32_t two, vint pairs) {
#if defined(__AVX512BF16__)
  return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(two), (__m512bh)pairs);
#else
  sum += widen(uint16_t(two)) * (vfloat)(pairs << 16);
  return sum + widen(uint16_t(two >> 16)) * (vfloat)(pairs & HIGH);
#endif
}

// The second one where either is NaN.
inline vfloat larger(vfloat x, vfloat y) { return x > y ? x : y; }

// All lanes of x, put together two at a time by f.
template <class F>
inline float across(vfloat x, F f) {
  float lanes[LANES];
  store(lanes, x);
#pragma GCC unroll 4
  for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) lanes[i] = f(lanes[i], lanes[i + half]);
  return lanes[0];
}

inline float sum_of(vfloat x) {
  return across(x, [](float a, float b) { return a + b; });
}

inline float largest_of(vfloat x) {
  return across(x, [](float a, float b) { return a > b ? a : b; });
}

// 2^x for x below 128, to about 3 units in the last place; 0 from -127 down.
inline vfloat exp2(vfloat x) {
  x = larger(-127.0f - vfloat{}, x);
  const vfloat shifted = x + 12582912.0f;  // 1.5 * 2^23 rounds
  const vfloat r = x - (shifted - 12582912.0f);
  vfloat p = (r * 1.3264727e-3f + 9.6715127e-3f) * r + 5.5507337e-2f;
  p = (p * r + 2.4022242e-1f) * r + 6.9314698e-1f;
  return (vfloat)(((vint)shifted << 23) + (vint)(p * r + 1.0f));
}
