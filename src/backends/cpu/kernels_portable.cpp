// SPDX-License-Identifier: Apache-2.0
// backends/cpu/kernels_portable.cpp: the instruction sets built for other processors.
#include "backends/cpu/kernels.hpp"

namespace cynosure::cpu {

const Kernels& kernels(CpuIsa) { return kPortableKernels; }

constinit const Kernels kAmxKernels{};  // never chosen: there are no tiles
bool tiles_granted() { return false; }

}  // namespace cynosure::cpu
