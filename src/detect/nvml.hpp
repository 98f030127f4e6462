// SPDX-License-Identifier: Apache-2.0
// detect/nvml.hpp: what CUDA would see, according to NVML, without initialising CUDA (cuda.hpp says why).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "detect/cuda.hpp"

namespace cynosure::detect {

/// The GPUs in CUDA's order, or that CUDA_VISIBLE_DEVICES hides them all; nothing when only the CUDA driver can tell.
[[nodiscard]] std::optional<FoundGpus> ask_nvml(const Loader& loader);

/// The devices that CUDA_VISIBLE_DEVICES selects, as indices into the list of UUIDs of all GPUs: numbers, and
/// unambiguous beginnings of UUIDs ("GPU-8932f937-..."). Nothing for any other form: the driver's own reading has to
/// decide.
[[nodiscard]] std::optional<std::vector<std::size_t>> visible_devices(std::string_view variable,
                                                                      const std::vector<std::string>& uuids);

/// CUDA cores of one multiprocessor; 0 for a compute capability that is not known here.
[[nodiscard]] constexpr unsigned cores_per_multiprocessor(unsigned sm) {
  if (sm == 60 || (sm >= 70 && sm <= 80)) return 64;
  if (sm == 61 || sm == 62 || (sm >= 86 && sm <= 121)) return 128;
  return 0;
}

}  // namespace cynosure::detect
