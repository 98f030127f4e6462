// SPDX-License-Identifier: Apache-2.0
// backends/cpu/kernels_x86.cpp: the instruction sets built for x86-64.
#include "backends/cpu/kernels.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cynosure::cpu {

const Kernels& kernels(CpuIsa isa) {
  if (isa >= CpuIsa::avx512) return kAvx512Kernels;
  return isa == CpuIsa::avx2 ? kAvx2Kernels : kPortableKernels;
}

bool tiles_granted() {
#if defined(__linux__)
  constexpr int request = 0x1023;  // ARCH_REQ_XCOMP_PERM, which older kernel headers lack
  constexpr int tile_data = 18;
  static const bool granted = syscall(SYS_arch_prctl, request, tile_data) == 0;
  return granted;
#else
  return false;
#endif
}

}  // namespace cynosure::cpu
