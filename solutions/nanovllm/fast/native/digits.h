// Rows of activations as whole numbers: the left side of products with codes.
#pragma once
#include <algorithm>
#include <type_traits>

#include "product.h"

// A value is scale * (d0 * BASE^(n-1) + d1 * BASE^(n-2) + ...), the digits d from -BASE / 2 to
// BASE / 2 - 1, the scale one for the row. So the sum of many products with codes of 8 bits is a
// sum of whole numbers, and exact: it is the same in any order. Where the processor multiplies
// bytes, a digit is one; elsewhere it has 15 bits, such that the sum of 512 products fits into 32.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) && !defined(__AVX512F__)
#define NV_BYTE_DOT 1
#else
#define NV_BYTE_DOT 0
#endif
typedef std::conditional_t<NV_BYTE_DOT, int8_t, int16_t> Digit;
constexpr int DIGIT_BITS = NV_BYTE_DOT ? 8 : 15, BASE = 1 << DIGIT_BITS;

// As many as the build's format deserves: 16 bits (15) for bfloat16, 24 (30) for float32.
constexpr int DIGITS = (NV_BYTE_DOT ? 4 : 3) - PAIR;

// The largest number of so many digits on both sides of zero.
constexpr int largest(int digits) {
  return digits == 1 ? BASE / 2 - 1 : largest(digits - 1) * BASE + BASE / 2 - 1;
}

// Pairs of 16 bits times pairs, in each lane.
inline vint dot2(vint x, vint y) {
#if defined(__AVX512BW__)
  return (vint)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (vint)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#elif defined(__SSE2__) && !defined(__AVX512F__)
  return (vint)_mm_madd_epi16((__m128i)x, (__m128i)y);
#else
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// sum + four digits times the four codes (a byte each) in each lane. Codes have a sign where digits
// have none.
template <class D>
INLINE vint dot4(vint sum, const D* four, vint codes) {
  constexpr bool SIGNED = std::is_unsigned_v<D>;
#if NV_BYTE_DOT
  const vint all = load<int32_t>(four) - vint{}, left = SIGNED ? all : codes;
  const vint right = SIGNED ? codes : all;
#if defined(__AVX512F__)
  return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)left, (__m512i)right);
#else
  return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)left, (__m256i)right);
#endif
#else
  vint low = (codes & 0xff) | (codes << 8 & 0xff0000);  // the codes in pairs of 16 bits
  vint high = (codes >> 16 & 0xff) | (codes >> 8 & 0xff0000);
  if (SIGNED) {
    typedef int16_t vshort __attribute__((vector_size(sizeof(vint))));
    low = (vint)((vshort)low << 8 >> 8), high = (vint)((vshort)high << 8 >> 8);
  }
  const vint two = load<int32_t>(four) - vint{}, other = load<int32_t>(four + 2) - vint{};
  return sum + dot2(low, two) + dot2(high, other);
#endif
}

// The numbers that the sums of D digits make up, in row m of vectors; WHOLE: they fit into 32 bits.
template <int D, bool WHOLE, int N, int V, class Row, class Column>
INLINE vfloat numbers_of(const vint (&sums)[N][V], Row m, Column v) {
  vint whole = sums[m * D][v];
  vfloat total = to_floats(whole);
  repeat<D - 1>(EACH(d) {
    whole = (whole << DIGIT_BITS) + sums[m * D + d + 1][v];
    total = total * float(BASE) + to_floats(sums[m * D + d + 1][v]);
  });
  return WHOLE ? to_floats(whole) : total;
}

inline vfloat load_floats(const float* from) { return load<vfloat>(from); }
inline vfloat load_floats(const uint16_t* from) {
  typedef uint16_t vshort __attribute__((vector_size(LANES * 2)));
  return (vfloat)(__builtin_convertvector(load<vshort>(from), vint) << 16);
}

// LANES values, of which those behind the first `count` are taken for zero.
template <class T>
inline vfloat load_some(const T* from, int count) {
  vint lane;
  for (int i = 0; i < LANES; ++i) lane[i] = i;
  return lane < count ? load_floats(from) : vfloat{};
}

// How large the largest value is, whatever its sign; NaN where one is NaN or infinite.
template <class T>
inline float largest_size(const T* x, int count) {
  vfloat top{}, broken{};
  for (int i = 0; i < count; i += LANES) {
    const vfloat value = load_some(x + i, count - i);
    top = larger(larger(value, -value), top);
    broken += value * 0.0f;
  }
  return largest_of(top) + sum_of(broken);
}

// Writes digit d of the values of a row to to[d * ld ...], and the sum of each `block` of the
// numbers to sums. Returns the scale, which is NaN where a value is NaN or infinite. The numbers
// are -most - 1 .. most, or, where digits have no sign, 0 .. most; the largest value lies in the
// middle between the last two (lab 09's grid). Whatever lies behind the row, up to a whole vector,
// is read but counts nothing.
template <class T, class D>
inline float to_digits(const T* x, int count, int digits, int most, int block, D* to, long ld,
                       float* sums) {
  typedef D vdigit __attribute__((vector_size(LANES * sizeof(D))));
  constexpr int half = std::is_signed_v<D> ? BASE / 2 : 0;
  float scale = largest_size(x, count) / (most + 0.5f);
  if (scale == 0) scale = 1.0f;
  const float inverse = 1.0f / scale;
  for (int from = 0; from < count; from += block) {
    const int until = std::min(from + block, count);
    vfloat sum{};
    for (int i = from; i < until; i += LANES) {  // what is written behind `until` is written again
      const vfloat value = load_some(x + i, until - i);
      // Only where numbers are to be another implementation's, a division has to be one.
      vint number = nearest(most == 127 ? value / scale : value * inverse);
      number = number > most ? most - vint{} : number < ~most ? ~most - vint{} : number;
      sum += to_floats(number);
      for (int d = digits - 1; d >= 0; --d) {
        const vint rest = (number + half) >> DIGIT_BITS;
        store(to + d * ld + i, __builtin_convertvector(number - (rest << DIGIT_BITS), vdigit));
        number = rest;
      }
    }
    sums[from / block] = sum_of(sum);
  }
  return scale;
}
