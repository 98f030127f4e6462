// SPDX-License-Identifier: Apache-2.0
// backends/cpu/kernels_x86.cpp: the instruction sets built for x86-64.
#include "backends/cpu/kernels.hpp"

namespace cynosure::cpu {

const Kernels& kernels(CpuIsa isa) {
  if (isa >= CpuIsa::avx512) return kAvx512Kernels;
  return isa == CpuIsa::avx2 ? kAvx2Kernels : kPortableKernels;
}

}  // namespace cynosure::cpu
