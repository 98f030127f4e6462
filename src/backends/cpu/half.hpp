// SPDX-License-Identifier: Apache-2.0
// backends/cpu/half.hpp: bfloat16 and float16 one at a time, round to nearest even; for tails and for processors
// without conversions. Internal linkage: each instruction set compiles its own copy.
#pragma once

#include <bit>
#include <cstdint>

namespace cynosure::cpu {
namespace {

inline float from_bfloat16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16U); }

inline std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);  // quiet NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

inline float from_float16(std::uint16_t x) {
  const std::uint32_t sign = (std::uint32_t{x} & 0x8000U) << 16U;
  const std::uint32_t magnitude = std::uint32_t{x} & 0x7fffU;
  if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13U));
  if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13U) + 0x38000000U));
  const float denormal = static_cast<float>(magnitude) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(denormal));
}

inline std::uint16_t to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const auto with_sign = [sign](std::uint32_t low) { return static_cast<std::uint16_t>(sign | low); };
  if (magnitude > 0x7f800000U) return with_sign(0x7e00U | ((magnitude >> 13U) & 0x3ffU));
  if (magnitude >= 0x477ff000U) return with_sign(0x7c00U);  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {                            // below 2^-14: adding 0.5 leaves multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U);
  }
  return with_sign((magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13U) & 1U)) >> 13U);
}

}  // namespace
}  // namespace cynosure::cpu
