// SPDX-License-Identifier: Apache-2.0
// backends/cpu/philox.hpp: which pairs dropout drops: Philox 4x32-10 (Salmon et al., 2011), counted by position.
//
// One block of the generator serves four neighbouring columns:
//   counter = (column / 4, row, batch index * heads + head, low half of offset), each modulo 2^32
//   key     = seed + high half of offset * 0x9e3779b97f4a7c15, as 64 bits
// Column j uses word j % 4 of the block and is dropped when that word < probability * 2^32. So a pair's fate depends on
// its position, seed and offset, and not on tiles, threads or instruction sets.
//
// Everything here has internal linkage: each instruction set compiles its own copy.
#pragma once

#include <cstdint>

namespace cynosure::cpu {

namespace {

struct DropoutKey {
  std::uint32_t key0 = 0, key1 = 0, offset = 0;
  std::uint32_t threshold = 0;  ///< words below it are dropped
  bool all = false;             ///< probability 1: everything is
  float keep_scale = 1;         ///< 1 / (1 - probability); 0 when all are dropped
};

inline DropoutKey dropout_key(double probability, std::int64_t seed, std::int64_t offset) {
  const auto bits = static_cast<std::uint64_t>(offset);
  const std::uint64_t key = static_cast<std::uint64_t>(seed) + (bits >> 32U) * 0x9e3779b97f4a7c15U;
  DropoutKey result;
  result.key0 = static_cast<std::uint32_t>(key);
  result.key1 = static_cast<std::uint32_t>(key >> 32U);
  result.offset = static_cast<std::uint32_t>(bits);
  result.all = probability >= 1.0;
  result.keep_scale = result.all ? 0.0F : static_cast<float>(1.0 / (1.0 - probability));
  if (!result.all && probability > 0) result.threshold = static_cast<std::uint32_t>(probability * 4294967296.0);
  return result;
}

/// Each counter becomes its block of the generator. A set has as many as Isa::Bits has lanes; kSets of them run side by
/// side, since one alone waits for its own products. Of Isa this takes Bits (with ^), set_bits and multiply_wide.
template <class Isa, int kSets>
inline void philox(const DropoutKey& key, typename Isa::Bits (&counter)[kSets][4]) {
  using Bits = typename Isa::Bits;
  std::uint32_t key0 = key.key0;
  std::uint32_t key1 = key.key1;
  const Bits multiplier0 = Isa::set_bits(0xD2511F53U);
  const Bits multiplier1 = Isa::set_bits(0xCD9E8D57U);
  for (int round = 0; round < 10; ++round) {
    const Bits round_key0 = Isa::set_bits(key0);
    const Bits round_key1 = Isa::set_bits(key1);
    for (auto& words : counter) {
      Bits high0;
      Bits low0;
      Bits high1;
      Bits low1;
      Isa::multiply_wide(words[0], multiplier0, high0, low0);
      Isa::multiply_wide(words[2], multiplier1, high1, low1);
      words[0] = high1 ^ words[1] ^ round_key0;
      words[1] = low1;
      words[2] = high0 ^ words[3] ^ round_key1;
      words[3] = low0;
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

}  // namespace
}  // namespace cynosure::cpu
