// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_portable.cpp: the generic algorithm for any processor.
#include "backends/cpu/isa_portable.hpp"

#include "backends/cpu/table.hpp"

namespace cynosure::cpu {

constinit const Kernels kPortableKernels = kernel_table<Portable>();

}  // namespace cynosure::cpu
