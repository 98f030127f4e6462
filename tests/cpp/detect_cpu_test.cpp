// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "detect/cpu.hpp"

namespace cynosure::detect {
namespace {

/// A processor by the flags of /proc/cpuinfo, and what the system saves and grants.
struct FakeCpu {
  std::set<std::string> flags;
  std::uint64_t xcr0 = 0;
  std::uint64_t grantable = 0;
  std::string brand;
};
FakeCpu fake;
int xcr0_reads = 0;

std::uint32_t bit(const char* flag, unsigned position) {
  return static_cast<std::uint32_t>(fake.flags.count(flag)) << position;
}

CpuidRegisters fake_cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  if (leaf == 1) return {0, 0, bit("fma", 12) | bit("osxsave", 27) | bit("avx", 28) | bit("f16c", 29), 0};
  if (leaf == 7 && subleaf == 0)
    return {1,
            bit("avx2", 5) | bit("bmi2", 8) | bit("avx512f", 16) | bit("avx512dq", 17) | bit("avx512bw", 30) |
                bit("avx512vl", 31),
            0, bit("amx_bf16", 22) | bit("amx_tile", 24)};
  if (leaf == 7 && subleaf == 1) return {bit("avx512_bf16", 5), 0, 0, 0};
  if (leaf == 0x80000000) return {fake.brand.empty() ? 0 : 0x80000008, 0, 0, 0};
  CpuidRegisters part;
  if (leaf >= 0x80000002 && leaf <= 0x80000004) {
    const std::string text = (fake.brand + std::string(48, '\0')).substr(std::size_t{16} * (leaf - 0x80000002), 16);
    std::memcpy(&part, text.data(), sizeof part);
  }
  return part;
}
std::uint64_t fake_xcr0() {
  ++xcr0_reads;
  return fake.xcr0;
}
std::uint64_t fake_grantable() { return fake.grantable; }

constexpr CpuQueries kFake{.cpuid = fake_cpuid, .xcr0 = fake_xcr0, .grantable = fake_grantable};
constexpr std::uint64_t kYmm = 0x7;
constexpr std::uint64_t kZmm = 0xe7;
constexpr std::uint64_t kTiles = 0x600e7;

const FakeCpu kSapphireRapids{
    .flags = {"osxsave", "avx", "fma", "f16c", "avx2", "bmi2", "avx512f", "avx512dq", "avx512bw", "avx512vl",
              "amx_tile", "amx_bf16", "avx512_bf16"},
    .xcr0 = kTiles,
    .grantable = kTiles,
    .brand = "Intel(R) Xeon(R) Platinum 8481C",
};

FakeCpu without(const std::string& flag) {
  FakeCpu cpu = kSapphireRapids;
  EXPECT_EQ(cpu.flags.erase(flag), 1U) << flag;
  return cpu;
}
FakeCpu with_state(std::uint64_t xcr0, std::uint64_t grantable) {
  FakeCpu cpu = kSapphireRapids;
  cpu.xcr0 = xcr0;
  cpu.grantable = grantable;
  return cpu;
}
CpuIsa isa_of(const FakeCpu& cpu) {
  fake = cpu;
  return best_cpu_isa(kFake);
}

TEST(DetectCpu, AllFlagsAndStatesAreAmx) { EXPECT_EQ(isa_of(kSapphireRapids), CpuIsa::amx); }

TEST(DetectCpu, EachFlagIsNeededForItsLevel) {
  for (const char* flag : {"osxsave", "avx", "fma", "f16c", "avx2", "bmi2"})
    EXPECT_EQ(isa_of(without(flag)), CpuIsa::generic) << flag;
  for (const char* flag : {"avx512f", "avx512dq", "avx512bw", "avx512vl"})
    EXPECT_EQ(isa_of(without(flag)), CpuIsa::avx2) << flag;
  for (const char* flag : {"amx_tile", "amx_bf16", "avx512_bf16"})
    EXPECT_EQ(isa_of(without(flag)), CpuIsa::avx512) << flag;
}

TEST(DetectCpu, TheSystemMustSaveTheRegisters) {
  EXPECT_EQ(isa_of(with_state(0x3, 0)), CpuIsa::generic);
  EXPECT_EQ(isa_of(with_state(kYmm, 0)), CpuIsa::avx2);
  EXPECT_EQ(isa_of(with_state(kYmm | 0x60, 0)), CpuIsa::avx2);
  EXPECT_EQ(isa_of(with_state(kZmm, kTiles)), CpuIsa::avx512);
}

TEST(DetectCpu, TilesMustBeGrantable) {
  EXPECT_EQ(isa_of(with_state(kTiles, 0)), CpuIsa::avx512);
  EXPECT_EQ(isa_of(with_state(kTiles, kZmm | 0x20000)), CpuIsa::avx512);
}

TEST(DetectCpu, XgetbvIsNotRunWithoutOsxsave) {
  xcr0_reads = 0;
  (void)isa_of(without("osxsave"));
  EXPECT_EQ(xcr0_reads, 0);
}

TEST(DetectCpu, NoCpuidAtAllIsGeneric) {
  EXPECT_EQ(isa_of({}), CpuIsa::generic);
  EXPECT_FALSE(cpu_name(kFake).empty()) << "the architecture stands in for the brand";
}

TEST(DetectCpu, TheNameIsTrimmed) {
  for (const char* brand : {"Intel Xeon", "       Intel Xeon", "Intel Xeon     "}) {
    fake.brand = brand;
    EXPECT_EQ(cpu_name(kFake), "Intel Xeon");
  }
  fake.brand = std::string(48, 'x');  // all bytes used, no terminator
  EXPECT_EQ(cpu_name(kFake), std::string(48, 'x'));
}

TEST(DetectCpu, ThisMachineAnswers) {
  EXPECT_EQ(best_cpu_isa(), best_cpu_isa());
  EXPECT_FALSE(cpu_name().empty());
#if defined(__x86_64__) && defined(__GNUC__)
  // The compiler's own detection agrees, as far as it goes.
  EXPECT_LE(best_cpu_isa() >= CpuIsa::avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_LE(best_cpu_isa() >= CpuIsa::avx512, __builtin_cpu_supports("avx512vl") != 0);
#endif
}

}  // namespace
}  // namespace cynosure::detect
