// SPDX-License-Identifier: Apache-2.0
// detect/cpu_x86.cpp: the queries of this machine. On other architectures cpuid answers nothing, so every level is
// absent.
#include "detect/cpu.hpp"

#if defined(__x86_64__)
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cynosure::detect {
namespace {

#if defined(__x86_64__)

CpuidRegisters cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidRegisters r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

std::uint64_t xcr0() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  // The intrinsic _xgetbv would need -mxsave for this file.
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32U | low;
}

std::uint64_t grantable() {
#if defined(ARCH_GET_XCOMP_SUPP)
  constexpr int get_supported = ARCH_GET_XCOMP_SUPP;
#else
  constexpr int get_supported = 0x1021;  // kernel headers before 5.16; an older kernel answers EINVAL
#endif
  std::uint64_t components = 0;
  return syscall(SYS_arch_prctl, get_supported, &components) == 0 ? components : 0;
}

#else

CpuidRegisters cpuid(std::uint32_t, std::uint32_t) { return {}; }
std::uint64_t xcr0() { return 0; }
std::uint64_t grantable() { return 0; }

#endif

}  // namespace

const CpuQueries& system_cpu() {
  static constexpr CpuQueries queries{.cpuid = cpuid, .xcr0 = xcr0, .grantable = grantable};
  return queries;
}

}  // namespace cynosure::detect
