// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/rows.cpp: launching the kernels of rows.cu.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "backends/cudnn/rows_ptx.hpp"
#include "backends/cudnn/run_rows.hpp"

namespace cynosure::cudnn {
namespace {

constexpr unsigned kThreads = 256;

struct Kernels {
  void* before = nullptr;
  void* after = nullptr;
};

const Kernels& kernels(std::int32_t device) {
  static std::mutex mutex;
  static std::map<std::int32_t, Kernels> loaded;  // one module for each device's primary context, kept
  thread_local std::int32_t last_device = -1;
  thread_local const Kernels* last = nullptr;
  if (last != nullptr && last_device == device) return *last;
  const std::lock_guard lock(mutex);
  Kernels& found = loaded[device];
  if (found.after == nullptr) {
    void* module = nullptr;
    check_driver(driver().load_module(&module, kRowsPtx), "cuModuleLoadData");
    check_driver(driver().get_function(&found.before, module, "rows_before"), "rows_before");
    check_driver(driver().get_function(&found.after, module, "rows_after"), "rows_after");
  }
  last_device = device;
  last = &found;
  return found;
}

void launch(void* kernel, std::int64_t work, void* argument, Stream stream) {
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>((work + kThreads - 1) / kThreads, 1, 1024));
  std::array<void*, 1> arguments{argument};
  check_driver(driver().launch(kernel, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments.data(), nullptr),
               "cuLaunchKernel");
}

}  // namespace

void load_rows(std::int32_t device) { static_cast<void>(kernels(device)); }

void run(RowsBefore& arguments, std::int32_t device, Stream stream) {
  std::int64_t work = std::max<std::int64_t>(arguments.batch + 1, arguments.lse_count);
  // Most calls have nothing to clear; for those that have, this many threads keep the memory busy.
  if (arguments.outputs_count > 0) work = std::max<std::int64_t>(work, std::int64_t{132} * kThreads);
  launch(kernels(device).before, work, &arguments, stream);
}

void run(RowsAfter& arguments, std::int32_t device, Stream stream) {
  launch(kernels(device).after, std::int64_t{arguments.batch} * arguments.q.most, &arguments, stream);
}

}  // namespace cynosure::cudnn
