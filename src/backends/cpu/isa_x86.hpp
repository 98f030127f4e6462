// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_x86.hpp: what AVX2 and AVX-512 share.
#pragma once

#include <immintrin.h>

#include "backends/cpu/geometry.hpp"

namespace cynosure::cpu {
namespace {

/// to[j][i] = from[i][j], 8 x 8.
inline void transpose8(const float* from, Index from_ld, float* to, Index to_ld) {
  __m256 row[8];
  __m256 pair[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(from + i * from_ld);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    row[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    row[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    row[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    row[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_ld, _mm256_permute2f128_ps(row[i], row[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_ld, _mm256_permute2f128_ps(row[i], row[i + 4], 0x31));
  }
}

}  // namespace
}  // namespace cynosure::cpu
