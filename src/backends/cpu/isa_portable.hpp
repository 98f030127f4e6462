// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_portable.hpp: the primitives for any processor, in the compiler's vectors of four floats.
#pragma once

#include <cstring>

#include <cynosure/device.hpp>

#include "backends/cpu/geometry.hpp"
#include "backends/cpu/half.hpp"

namespace cynosure::cpu {
namespace {

struct Portable {
  static constexpr CpuIsa kIsa = CpuIsa::generic;
  using Float = float __attribute__((vector_size(16)));
  using Mask = std::int32_t __attribute__((vector_size(16)));
  using Bits = std::uint32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  /// The micro-kernel: 6 rows of 2 vectors: 12 accumulators of the 16 registers of SSE2.
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;

  static Float zero() { return Float{}; }
  static Float set(float x) { return Float{x, x, x, x}; }
  static Float load(const void* p) {
    Float x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(void* p, Float x) { std::memcpy(p, &x, sizeof x); }

  static Float add(Float a, Float b) { return a + b; }
  static Float sub(Float a, Float b) { return a - b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float div(Float a, Float b) { return a / b; }
  static Float fma(Float a, Float b, Float c) { return a * b + c; }
  // The second argument where either is NaN, as x86 does.
  static Float max(Float a, Float b) { return a > b ? a : b; }
  static Float min(Float a, Float b) { return a < b ? a : b; }
  static Float absolute(Float a) { return reinterpret_cast<Float>(reinterpret_cast<Mask>(a) & 0x7fffffff); }

  static Mask less(Float a, Float b) { return a < b; }
  static Mask equal(Float a, Float b) { return a == b; }
  static Mask is_zero(Float a) { return equal(a, zero()); }
  static Float select(Mask mask, Float yes, Float no) { return mask ? yes : no; }

  static Float power_of_two(Float t) {
    return reinterpret_cast<Float>((reinterpret_cast<Bits>(t) << 23) + 0x3f800000U);
  }
  static float sum(Float a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static float largest(Float a) {
    float result = a[0];
    for (int i = 1; i < kLanes; ++i) result = a[i] > result ? a[i] : result;
    return result;
  }

  static Float load_bfloat16(const void* p) { return load_half(p, from_bfloat16); }
  static Float load_float16(const void* p) { return load_half(p, from_float16); }
  static void store_bfloat16(void* p, Float x) { store_half(p, x, to_bfloat16); }
  static void store_float16(void* p, Float x) { store_half(p, x, to_float16); }
  static Mask load_mask(const std::uint8_t* p) {
    Mask mask;
    for (int i = 0; i < kLanes; ++i) mask[i] = p[i] != 0 ? -1 : 0;
    return mask;
  }

  static Bits set_bits(std::uint32_t x) { return Bits{x, x, x, x}; }
  static Bits load_bits(const std::uint32_t* p) {
    Bits x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void multiply_wide(Bits a, Bits b, Bits& high, Bits& low) {
    for (int i = 0; i < kLanes; ++i) {
      const std::uint64_t product = std::uint64_t{a[i]} * b[i];
      high[i] = static_cast<std::uint32_t>(product >> 32U);
      low[i] = static_cast<std::uint32_t>(product);
    }
  }
  static Mask less_bits(Bits a, Bits b) { return a < b; }
  static void transpose_quads(Float (&x)[4]) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < i; ++j) {
        const float upper = x[j][i];
        x[j][i] = x[i][j];
        x[i][j] = upper;
      }
  }

  static void transpose(const float* from, Index from_ld, float* to, Index to_ld) {
    for (int i = 0; i < kLanes; ++i)
      for (int j = 0; j < kLanes; ++j) to[j * to_ld + i] = from[i * from_ld + j];
  }

 private:
  template <class Convert>
  static Float load_half(const void* p, Convert convert) {
    std::uint16_t x[kLanes];
    std::memcpy(x, p, sizeof x);
    return Float{convert(x[0]), convert(x[1]), convert(x[2]), convert(x[3])};
  }
  template <class Convert>
  static void store_half(void* p, Float x, Convert convert) {
    const std::uint16_t y[kLanes] = {convert(x[0]), convert(x[1]), convert(x[2]), convert(x[3])};
    std::memcpy(p, y, sizeof y);
  }
};

}  // namespace
}  // namespace cynosure::cpu
