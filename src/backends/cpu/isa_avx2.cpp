// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_avx2.cpp: the primitives on AVX2, FMA and F16C. Compiled with these flags: see CMakeLists.txt.
#include "backends/cpu/isa_x86.hpp"
#include "backends/cpu/table.hpp"

namespace cynosure::cpu {
namespace {

struct Avx2 {
  static constexpr CpuIsa kIsa = CpuIsa::avx2;
  using Float = __m256;
  using Mask = __m256;
  using Bits = __m256i;
  static constexpr int kLanes = 8;
  /// The micro-kernel: 6 rows of 2 vectors: 12 accumulators cover 4 cycles of latency on 2 FMA units with a third to
  /// spare; with 2 vectors of B and 1-2 of A all 16 registers are used. 8 loads for 12 products.
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;

  static Float zero() { return _mm256_setzero_ps(); }
  static Float set(float x) { return _mm256_set1_ps(x); }
  static Float load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store(void* p, Float x) { _mm256_storeu_ps(static_cast<float*>(p), x); }

  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float absolute(Float a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }

  static Mask less(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Mask equal(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static Mask is_zero(Float a) { return equal(a, zero()); }
  static Float select(Mask mask, Float yes, Float no) { return _mm256_blendv_ps(no, yes, mask); }

  static Float power_of_two(Float t) {
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
  }
  static float sum(Float a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  static float largest(Float a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }

  static Float load_bfloat16(const void* p) {
    const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static Float load_float16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static void store_bfloat16(void* p, Float x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i y = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    y = _mm256_blendv_epi8(y, quiet, nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    _mm_storeu_si128(static_cast<__m128i*>(p), packed);
  }
  static void store_float16(void* p, Float x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static Mask load_mask(const std::uint8_t* p) {
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(x, _mm256_setzero_si256()));
  }

  static Bits set_bits(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Bits load_bits(const std::uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void multiply_wide(Bits a, Bits b, Bits& high, Bits& low) {
    const __m256i even = _mm256_mul_epu32(a, b);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  }
  static Mask less_bits(Bits a, Bits b) {
    const __m256i sign = set_bits(0x80000000U);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_xor_si256(b, sign), _mm256_xor_si256(a, sign)));
  }
  static void transpose_quads(Float (&x)[4]) {
    const Float a = _mm256_unpacklo_ps(x[0], x[1]);
    const Float b = _mm256_unpackhi_ps(x[0], x[1]);
    const Float c = _mm256_unpacklo_ps(x[2], x[3]);
    const Float d = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(a, c, 0x44);
    x[1] = _mm256_shuffle_ps(a, c, 0xee);
    x[2] = _mm256_shuffle_ps(b, d, 0x44);
    x[3] = _mm256_shuffle_ps(b, d, 0xee);
  }

  static void transpose(const float* from, Index from_ld, float* to, Index to_ld) {
    transpose8(from, from_ld, to, to_ld);
  }
};

}  // namespace

constinit const Kernels kAvx2Kernels = kernel_table<Avx2>();

}  // namespace cynosure::cpu
