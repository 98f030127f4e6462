// SPDX-License-Identifier: Apache-2.0
// detect/cpu.hpp: the instruction sets of this processor that the operating system lets us use.
//
//   avx2     AVX2, FMA, F16C, BMI2
//   avx512   avx2 and AVX-512 F, BW, DQ, VL
//   amx      avx512 and AVX512-BF16, AMX-TILE, AMX-BF16
//
// A level counts only when the system also saves its registers (XCR0) and, for tiles, can grant them (arch_prctl).
// Detection asks whether tiles can be had and does not ask for them: a grant enlarges the signal frames of the whole
// process, so it belongs to the first kernel that uses them. Other architectures have the level `generic`.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <cynosure/device.hpp>

namespace cynosure::detect {

struct CpuidRegisters {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// What is asked of the processor and the system. Tests hand in their own.
struct CpuQueries {
  /// All zeros for a leaf that the processor does not have.
  CpuidRegisters (*cpuid)(std::uint32_t leaf, std::uint32_t subleaf);
  std::uint64_t (*xcr0)();       ///< called only where cpuid reports OSXSAVE
  std::uint64_t (*grantable)();  ///< state components a process may be granted (ARCH_GET_XCOMP_SUPP); 0 when unknown
};

/// The queries of this machine.
[[nodiscard]] const CpuQueries& system_cpu();

[[nodiscard]] CpuIsa best_cpu_isa(const CpuQueries& queries = system_cpu());
/// "Intel(R) Xeon(R) Platinum 8481C"; the architecture's name where the processor has no brand string.
[[nodiscard]] std::string cpu_name(const CpuQueries& queries = system_cpu());

}  // namespace cynosure::detect
