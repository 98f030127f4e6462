// SPDX-License-Identifier: Apache-2.0
// detect/cuda.hpp: the GPUs that this process sees, in CUDA's order. Links nothing of CUDA and creates no context.
//
// The driver (libcuda.so.1) has the exact answer, and asking it has a price: after cuInit, processes forked from this
// one cannot use CUDA, and CUDA_VISIBLE_DEVICES is frozen. A question about the machine must not do that to a program
// that forks its workers later. So:
//   1. Where somebody has called cuInit already (cuDeviceGetCount says so), the driver answers; nothing is changed.
//   2. Otherwise NVML answers, which leaves no trace. It knows neither CUDA_VISIBLE_DEVICES nor CUDA's order of
//   devices:
//      the variable is applied here, and the answer taken only where it is certain. It is not with MIG, with GPUs of
//      several kinds whose order is CUDA's to choose, or with a variable of an unusual form.
//   3. Otherwise the driver is asked after all, cuInit included: a wrong answer would be worse.
// NVML tells which GPUs there are and not whether CUDA starts: a process forked from one that had called cuInit is
// still told of its GPUs.
#pragma once

#include <string>
#include <vector>

#include <cynosure/package_version.hpp>

#include "detect/loader.hpp"

namespace cynosure::detect {

struct Gpu {
  std::string name;
  unsigned sm = 0;        ///< compute capability times 10
  unsigned sm_count = 0;  ///< streaming multiprocessors
  bool operator==(const Gpu&) const = default;
};

struct FoundGpus {
  std::vector<Gpu> gpus;
  std::string why_not;  ///< why there are none; "" when there are
  Version cuda;         ///< the newest CUDA that the driver runs; not installed without a driver
};

[[nodiscard]] FoundGpus find_gpus(const Loader& loader = system_loader());

}  // namespace cynosure::detect
