// SPDX-License-Identifier: Apache-2.0
// backends/cpu/dropout_mask.hpp: the pairs that the kernels would keep, as a tensor: for a reference that holds all
// scores.
#pragma once

#include <cstdint>

#include "backends/cpu/attention.hpp"

namespace cynosure::cpu {

/// keep[row * columns + column] is 0 or 1 / (1 - probability), for rows of one batch index and head.
void dropout_mask(const Dropout& dropout, std::int64_t batch_and_head, std::int64_t rows, std::int64_t columns,
                  float* keep);

}  // namespace cynosure::cpu
