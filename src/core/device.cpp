// SPDX-License-Identifier: Apache-2.0
// core/device.cpp: the catalogue of named machines.
#include <algorithm>

#include <cynosure/device.hpp>

namespace cynosure {
namespace {

struct Gpu {
  std::string_view name;
  std::uint16_t sm;
  std::uint16_t sm_count;
};

// Compute capabilities and multiprocessor counts from NVIDIA's data sheets (SXM parts where there are several).
constexpr std::array kGpus{
    Gpu{"v100", 70, 80},    Gpu{"t4", 75, 40},       Gpu{"a100", 80, 108},     Gpu{"a30", 80, 56},
    Gpu{"a10g", 86, 80},    Gpu{"a40", 86, 84},      Gpu{"rtx3090", 86, 82},   Gpu{"l4", 89, 58},
    Gpu{"l40s", 89, 142},   Gpu{"rtx4090", 89, 128}, Gpu{"h100", 90, 132},     Gpu{"h200", 90, 132},
    Gpu{"gh200", 90, 132},  Gpu{"b200", 100, 148},   Gpu{"gb200", 100, 148},   Gpu{"b300", 103, 148},
    Gpu{"gb300", 103, 148}, Gpu{"thor", 110, 20},    Gpu{"rtx5090", 120, 170}, Gpu{"rtxpro6000", 120, 188},
    Gpu{"gb10", 121, 48},
};

// The libraries a named machine has unless told otherwise: the newest releases this table knows.
constexpr Version kCudnn{9, 26, 0};
constexpr Version kFlash2{2, 8, 3};
constexpr Version kFlash3{3, 0, 0};
constexpr Version kFlash4{4, 0, 0, Version::Phase::beta, 36};
constexpr Version kTorch{2, 15, 0};

}  // namespace

std::optional<Device> named_device(std::string_view name) {
  Device device;
  device.torch = kTorch;
  device.cpu_isa = CpuIsa::amx;
  if (name == "cpu") return device;
  const auto* const gpu = std::find_if(kGpus.begin(), kGpus.end(), [&](const Gpu& g) { return g.name == name; });
  if (gpu == kGpus.end()) return std::nullopt;
  device.kind = DeviceKind::cuda;
  device.sm = gpu->sm;
  device.sm_count = gpu->sm_count;
  device.cudnn = kCudnn;
  device.flash2 = kFlash2;
  // Packages that have no kernels at all for an architecture are not installed there.
  if (gpu->sm == 90) device.flash3 = kFlash3;
  if (gpu->sm >= 90) device.flash4 = kFlash4;
  return device;
}

std::string device_names() {
  std::string names = "cpu";
  for (const Gpu& gpu : kGpus) names += ", " + std::string(gpu.name);
  return names;
}

}  // namespace cynosure
