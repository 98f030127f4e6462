// SPDX-License-Identifier: Apache-2.0
// The generator of dropout against the published known answers (Random123, kat_vectors: philox4x32 10).
#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include "backends/cpu/half.hpp"
#include "backends/cpu/philox.hpp"

namespace cynosure::cpu {
namespace {

struct OneLane {
  using Bits = std::uint32_t;
  static Bits set_bits(std::uint32_t x) { return x; }
  static void multiply_wide(Bits a, Bits b, Bits& high, Bits& low) {
    const std::uint64_t product = std::uint64_t{a} * b;
    high = static_cast<std::uint32_t>(product >> 32U);
    low = static_cast<std::uint32_t>(product);
  }
};

void expect_block(const DropoutKey& key, std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 4> block) {
  std::uint32_t words[1][4] = {{counter[0], counter[1], counter[2], counter[3]}};
  philox<OneLane>(key, words);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(words[0][i], block[i]) << i;
}

TEST(CpuPhilox, KnownAnswers) {
  constexpr std::uint32_t ones = 0xffffffffU;
  expect_block({}, {0, 0, 0, 0}, {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
  DropoutKey key;
  key.key0 = key.key1 = ones;
  expect_block(key, {ones, ones, ones, ones}, {0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
  key.key0 = 0xa4093822U;
  key.key1 = 0x299f31d0U;
  expect_block(key, {0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
               {0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U});
}

TEST(CpuPhilox, ThresholdAndScale) {
  EXPECT_EQ(dropout_key(0.5F, 1, 2).threshold, 0x80000000U);
  EXPECT_EQ(dropout_key(0.5F, 1, 2).keep_scale, 2.0F);
  EXPECT_EQ(dropout_key(0.0F, 1, 2).keep_scale, 1.0F);
  EXPECT_EQ(dropout_key(1.0F, 1, 2).keep_scale, 0.0F);
}

TEST(CpuHalf, EveryValueSurvives) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto x = static_cast<std::uint16_t>(bits);
    const float f = from_float16(x);
    if (f == f) {
      ASSERT_EQ(to_float16(f), x);
    }
    const float b = from_bfloat16(x);
    if (b == b) {
      ASSERT_EQ(to_bfloat16(b), x);
    }
  }
  EXPECT_EQ(to_float16(65519.0F), 0x7bffU);
  EXPECT_EQ(to_float16(65520.0F), 0x7c00U);
  EXPECT_EQ(to_float16(0x1p-25F), 0U);    // halfway to the smallest: even
  EXPECT_EQ(to_float16(0x1.8p-24F), 2U);  // halfway between 1 and 2: even
  EXPECT_EQ(to_float16(1.0F + 0x1p-11F), 0x3c00U);
  EXPECT_EQ(to_float16(1.0F + 0x1.8p-10F), 0x3c02U);
}

}  // namespace
}  // namespace cynosure::cpu
