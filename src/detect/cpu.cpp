// SPDX-License-Identifier: Apache-2.0
// detect/cpu.cpp: the levels, from what cpuid, xgetbv and the kernel answer.
#include "detect/cpu.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include <sys/utsname.h>

namespace cynosure::detect {
namespace {

[[nodiscard]] constexpr bool has(std::uint64_t value, std::initializer_list<unsigned> bits) {
  for (const unsigned bit : bits)
    if ((value >> bit & 1U) == 0) return false;
  return true;
}

// State components, as numbered in XCR0 and in ARCH_GET_XCOMP_SUPP.
constexpr std::initializer_list<unsigned> kYmmState{1, 2};     // SSE, AVX
constexpr std::initializer_list<unsigned> kZmmState{5, 6, 7};  // opmask, upper halves, upper registers
constexpr std::initializer_list<unsigned> kTileState{17, 18};  // XTILECFG, XTILEDATA
constexpr std::initializer_list<unsigned> kTileDataState{18};  // the one that a process must be granted

/// The registers of cpuid that the levels read.
struct Features {
  CpuidRegisters basic, extended, more;  // leaf 1, leaf 7.0, leaf 7.1

  [[nodiscard]] bool os_saves_state() const { return has(basic.ecx, {27}); }  // OSXSAVE
  [[nodiscard]] bool avx2() const {
    return has(basic.ecx, {12, 28, 29}) && has(extended.ebx, {5, 8});  // FMA, AVX, F16C; AVX2, BMI2
  }
  [[nodiscard]] bool avx512() const { return has(extended.ebx, {16, 17, 30, 31}); }  // F, DQ, BW, VL
  [[nodiscard]] bool amx() const {
    return has(extended.edx, {22, 24}) && has(more.eax, {5});  // AMX-BF16, AMX-TILE; AVX512-BF16
  }
};

}  // namespace

CpuIsa best_cpu_isa(const CpuQueries& queries) {
  const CpuidRegisters extended = queries.cpuid(7, 0);
  const Features cpu{.basic = queries.cpuid(1, 0),
                     .extended = extended,
                     .more = extended.eax >= 1 ? queries.cpuid(7, 1) : CpuidRegisters{}};  // eax: the last subleaf
  if (!cpu.os_saves_state() || !cpu.avx2()) return CpuIsa::generic;
  const std::uint64_t saved = queries.xcr0();
  if (!has(saved, kYmmState)) return CpuIsa::generic;
  if (!cpu.avx512() || !has(saved, kZmmState)) return CpuIsa::avx2;
  if (!cpu.amx() || !has(saved, kTileState) || !has(queries.grantable(), kTileDataState)) return CpuIsa::avx512;
  return CpuIsa::amx;
}

std::string cpu_name(const CpuQueries& queries) {
  constexpr std::uint32_t first = 0x80000002;  // three leaves of 16 characters
  constexpr std::uint32_t last = 0x80000004;
  std::array<char, 48 + 1> brand{};
  if (queries.cpuid(0x80000000, 0).eax >= last) {
    for (std::uint32_t leaf = first; leaf <= last; ++leaf) {
      const CpuidRegisters part = queries.cpuid(leaf, 0);
      std::memcpy(brand.data() + std::size_t{16} * (leaf - first), &part, sizeof part);
    }
  }
  // Some processors pad on the left, some on the right.
  std::string_view name = brand.data();
  name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
  name = name.substr(0, name.find_last_not_of(' ') + 1);
  if (!name.empty()) return std::string(name);
  utsname system{};
  return uname(&system) == 0 ? system.machine : "unknown processor";
}

}  // namespace cynosure::detect
