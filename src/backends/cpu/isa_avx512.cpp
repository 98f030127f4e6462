// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_avx512.cpp: the generic algorithm on AVX-512.
#include "backends/cpu/isa_avx512.hpp"

#include "backends/cpu/table.hpp"

namespace cynosure::cpu {

constinit const Kernels kAvx512Kernels = kernel_table<Avx512>();

}  // namespace cynosure::cpu
