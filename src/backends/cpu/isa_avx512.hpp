// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_avx512.hpp: the primitives on AVX-512 F, BW, DQ and VL. Compiled with these flags: see
// CMakeLists.txt.
#pragma once

#include <cynosure/device.hpp>

#include "backends/cpu/isa_x86.hpp"

namespace cynosure::cpu {
namespace {

struct Avx512 {
  static constexpr CpuIsa kIsa = CpuIsa::avx512;
  using Float = __m512;
  using Mask = __mmask16;
  using Bits = __m512i;
  static constexpr int kLanes = 16;
  /// The micro-kernel: 12 rows of 2 vectors: 24 accumulators, 2 vectors of B, A broadcast from memory inside the
  /// product; 14 loads for 24 products. 12 rows and not 14, because blocks of 96 divide by it; panels of 32 columns and
  /// not 48 (8 x 48), because head dimensions do.
  static constexpr int kRows = 12;
  static constexpr int kVectors = 2;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float set(float x) { return _mm512_set1_ps(x); }
  static Float load(const void* p) { return _mm512_loadu_ps(p); }
  static void store(void* p, Float x) { _mm512_storeu_ps(p, x); }

  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float absolute(Float a) { return _mm512_abs_ps(a); }

  static Mask less(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask equal(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static Mask is_zero(Float a) { return equal(a, zero()); }
  static Float select(Mask mask, Float yes, Float no) { return _mm512_mask_blend_ps(mask, no, yes); }

  static Float power_of_two(Float t) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)));
  }
  static float sum(Float a) { return _mm512_reduce_add_ps(a); }
  static float largest(Float a) { return _mm512_reduce_max_ps(a); }

  static Float load_bfloat16(const void* p) {
    const __m256i x = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static Float load_float16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static void store_bfloat16(void* p, Float x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __m512i y = _mm512_mask_blend_epi32(nan, rounded, quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(y));
  }
  static void store_float16(void* p, Float x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static Mask load_mask(const std::uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm_test_epi8_mask(x, x);
  }

  static Bits set_bits(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Bits load_bits(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
  static void multiply_wide(Bits a, Bits b, Bits& high, Bits& low) {
    const __m512i even = _mm512_mul_epu32(a, b);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  }
  static Mask less_bits(Bits a, Bits b) { return _mm512_cmplt_epu32_mask(a, b); }
  static void transpose_quads(Float (&x)[4]) {
    const Float a = _mm512_unpacklo_ps(x[0], x[1]);
    const Float b = _mm512_unpackhi_ps(x[0], x[1]);
    const Float c = _mm512_unpacklo_ps(x[2], x[3]);
    const Float d = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = _mm512_shuffle_ps(a, c, 0x44);
    x[1] = _mm512_shuffle_ps(a, c, 0xee);
    x[2] = _mm512_shuffle_ps(b, d, 0x44);
    x[3] = _mm512_shuffle_ps(b, d, 0xee);
  }

  static void transpose(const float* from, Index from_ld, float* to, Index to_ld) {
    transpose8(from, from_ld, to, to_ld);
    transpose8(from + 8, from_ld, to + 8 * to_ld, to_ld);
    transpose8(from + 8 * from_ld, from_ld, to + 8, to_ld);
    transpose8(from + 8 * from_ld + 8, from_ld, to + 8 * to_ld + 8, to_ld);
  }
};

}  // namespace
}  // namespace cynosure::cpu
