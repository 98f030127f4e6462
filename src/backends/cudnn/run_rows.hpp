// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/run_rows.hpp: the kernels of rows.cu.
#pragma once

#include <cstdint>

#include "backends/cudnn/library.hpp"
#include "backends/cudnn/rows.hpp"

namespace cynosure::cudnn {

/// Compiles them for the current device, once; not possible while a stream is captured. Throws std::runtime_error.
void load_rows(std::int32_t device);

/// Enqueues one. The device must be the current one. Throws std::runtime_error.
void run(RowsBefore& arguments, std::int32_t device, Stream stream);
void run(RowsAfter& arguments, std::int32_t device, Stream stream);

}  // namespace cynosure::cudnn
