// SPDX-License-Identifier: Apache-2.0
// backends/cpu/dropout_mask.cpp: Philox one block at a time.
#include "backends/cpu/dropout_mask.hpp"

#include "backends/cpu/philox.hpp"

namespace cynosure::cpu {
namespace {

struct Scalar {
  using Bits = std::uint32_t;
  static Bits set_bits(std::uint32_t value) { return value; }
  static void multiply_wide(Bits a, Bits b, Bits& high, Bits& low) {
    const std::uint64_t product = std::uint64_t{a} * b;
    high = static_cast<Bits>(product >> 32U);
    low = static_cast<Bits>(product);
  }
};

}  // namespace

void dropout_mask(const Dropout& dropout, std::int64_t batch_and_head, std::int64_t rows, std::int64_t columns,
                  float* keep) {
  const DropoutKey key = dropout_key(dropout.probability, dropout.seed, dropout.offset);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t block = 0; block * 4 < columns; ++block) {
      std::uint32_t counter[1][4] = {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(i),
                                      static_cast<std::uint32_t>(batch_and_head), key.offset}};
      philox<Scalar>(key, counter);
      for (std::int64_t word = 0; word < 4 && block * 4 + word < columns; ++word)
        keep[i * columns + block * 4 + word] = key.all || counter[0][word] < key.threshold ? 0.0F : key.keep_scale;
    }
  }
}

}  // namespace cynosure::cpu
