// SPDX-License-Identifier: Apache-2.0
// cynosure/device.hpp: what a machine is and has. A value: any machine can be asked about any other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <cynosure/backend.hpp>
#include <cynosure/export.hpp>
#include <cynosure/package_version.hpp>

namespace cynosure {

enum class DeviceKind : std::uint8_t { cpu, cuda };
inline constexpr std::array<std::string_view, 2> kDeviceKindNames{"cpu", "cuda"};

/// Best CPU instruction set the kernels may use; each includes the ones before it.
enum class CpuIsa : std::uint8_t { generic, avx2, avx512, amx };
inline constexpr std::array<std::string_view, 4> kCpuIsaNames{"generic", "avx2", "avx512", "amx"};

struct Device {
  Version cudnn;   ///< runtime cuDNN
  Version flash2;  ///< flash-attn
  Version flash3;  ///< flash-attn-3
  Version flash4;  ///< flash-attn-4
  Version torch;   ///< torch; brings aten_flash
  DeviceKind kind = DeviceKind::cpu;
  CpuIsa cpu_isa = CpuIsa::generic;
  std::uint16_t sm = 0;        ///< CUDA compute capability times 10: 90 is 9.0
  std::uint16_t sm_count = 0;  ///< streaming multiprocessors
  std::uint16_t built =
      BackendSet::all().bits();  ///< backends this release of Cynosure runs on that machine, a BackendSet
  bool interpreter = true;       ///< a Python interpreter is there (flash4 needs one)
  std::array<std::uint8_t, 7> reserved{};

  [[nodiscard]] constexpr BackendSet built_backends() const { return BackendSet::from_bits(built); }
  bool operator==(const Device&) const = default;
};
static_assert(std::has_unique_object_representations_v<Device>, "hashed and compared as bytes");

/// A machine from the catalogue ("h200", "a100", ...) with its newest known libraries; nothing for an unknown name.
[[nodiscard]] CYNOSURE_API std::optional<Device> named_device(std::string_view name);
/// The names the catalogue knows, comma separated, for messages.
[[nodiscard]] CYNOSURE_API std::string device_names();

}  // namespace cynosure
