// Rows of activations as whole numbers: the left side of products with codes.
#pragma once
#include <algorithm>

#include "product.h"

// A value is scale * (d0 * BASE^(n-1) + d1 * BASE^(n-2) + ...), the digits d from -BASE / 2 to
// BASE / 2 - 1, the scale one for the row. So the sum of many products with codes of 8 bits is a
// sum of whole numbers, and exact: it is the same in any order. Where the processor multiplies
// bytes, a digit is one; elsewhere it has 15 bits, such that LONGEST products fit into 32.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) && !defined(__AVX512F__)
#define NV_BYTE_DOT 1
typedef int8_t Digit;
constexpr int DIGIT_BITS = 8;
#else
#define NV_BYTE_DOT 0
typedef int16_t Digit;
constexpr int DIGIT_BITS = 15;
#endif
constexpr int BASE = 1 << DIGIT_BITS, LONGEST = 512;

// As many as the build's format deserves: 16 bits (15) for bfloat16, 24 (30) for float32.
#ifdef NV_BFLOAT16
constexpr int DIGITS = NV_BYTE_DOT ? 2 : 1;
#else
constexpr int DIGITS = NV_BYTE_DOT ? 3 : 2;
#endif

// The largest number of so many digits on both sides of zero.
constexpr int largest(int digits) {
  return digits == 1 ? BASE / 2 - 1 : largest(digits - 1) * BASE + BASE / 2 - 1;
}

#if NV_BYTE_DOT
constexpr int DIGIT_PLACE[] = {0, 1, 2, 3};
#else
constexpr int DIGIT_PLACE[] = {0, 2, 1, 3};  // even ones before odd ones, as `dot4` takes them
#endif

// sum + four digits times the four codes (a byte each) in each lane.
INLINE vint dot4(vint sum, const Digit* four, vint codes) {
#if NV_BYTE_DOT && defined(__AVX512F__)
  const __m512i all = _mm512_set1_epi32(load<int32_t>(four));
  return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, all);
#elif NV_BYTE_DOT
  const __m256i all = _mm256_set1_epi32(load<int32_t>(four));
  return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, all);
#elif defined(__AVX512BW__) || defined(__SSE2__) && !defined(__AVX512F__)
  const vint even = codes & 0x00ff00ff, odd = (codes >> 8) & 0x00ff00ff;
  const vint two = load<int32_t>(four) - vint{}, other = load<int32_t>(four + 2) - vint{};
#if defined(__AVX512BW__)
  sum += (vint)_mm512_madd_epi16((__m512i)even, (__m512i)two);
  return sum + (vint)_mm512_madd_epi16((__m512i)odd, (__m512i)other);
#elif defined(__AVX2__)
  sum += (vint)_mm256_madd_epi16((__m256i)even, (__m256i)two);
  return sum + (vint)_mm256_madd_epi16((__m256i)odd, (__m256i)other);
#else
  sum += (vint)_mm_madd_epi16((__m128i)even, (__m128i)two);
  return sum + (vint)_mm_madd_epi16((__m128i)odd, (__m128i)other);
#endif
#else
  for (int i = 0; i < 4; ++i) sum += ((codes >> (8 * i)) & 255) * int32_t(four[DIGIT_PLACE[i]]);
  return sum;
#endif
}

// Writes digit d of the row's values to to[d * ld ...], filled up with zeros to whole steps of 8,
// and the sum of each `block` of the numbers to sums. Returns the scale: the largest value becomes
// `most`. It is NaN where a value is NaN or infinite.
inline float to_digits(const Operand* x, int count, int digits, int most, int block, Digit* to,
                       long ld, float* sums) {
  float top = 0;
  bool finite = true;
#pragma omp simd reduction(max : top) reduction(& : finite)
  for (int i = 0; i < count; ++i) {
    const float value = std::fabs(widen(x[i]));
    finite &= value < INFINITY;
    top = value > top ? value : top;
  }
  const float step = top / most > 0 ? top / most : 1.0f;
  for (int from = 0; from < count; from += block) {
    const int until = std::min(from + block, count);
    float sum = 0;
    int32_t numbers[LONGEST];
#pragma omp simd reduction(+ : sum)
    for (int i = from; i < until; ++i) {
      const int32_t number = finite ? int32_t(std::rint(widen(x[i]) / step)) : 0;
      numbers[i - from] = std::clamp(number, -most, most);
      sum += numbers[i - from];
    }
    sums[from / block] = sum;
    const int width = (until - from + 7) / 8 * 8;
    for (int i = until - from; i < width; ++i) numbers[i] = 0;
    for (int d = digits - 1; d >= 0; --d) {
      Digit* row = to + d * ld + from;
#pragma omp simd
      for (int i = 0; i < width; ++i) {
        const int32_t rest = (numbers[i] + BASE / 2) >> DIGIT_BITS;
        row[i / 4 * 4 + DIGIT_PLACE[i % 4]] = Digit(numbers[i] - rest * BASE);
        numbers[i] = rest;
      }
    }
  }
  return finite ? step : NAN;
}
