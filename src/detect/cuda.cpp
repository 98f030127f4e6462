// SPDX-License-Identifier: Apache-2.0
// detect/cuda.cpp: the CUDA driver, and when it is asked.
#include "detect/cuda.hpp"

#include <array>
#include <optional>
#include <utility>

#include "detect/nvml.hpp"

namespace cynosure::detect {
namespace {

// From cuda.h.
constexpr int kSuccess = 0;
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

/// The functions of libcuda.so.1 that are used here; null where the library lacks one.
class Driver {
 public:
  Driver(const Loader& loader, void* library)
      : init_(loader.function<int(unsigned)>(library, "cuInit")),
        count_(loader.function<int(int*)>(library, "cuDeviceGetCount")),
        get_(loader.function<int(int*, int)>(library, "cuDeviceGet")),
        name_(loader.function<int(char*, int, int)>(library, "cuDeviceGetName")),
        attribute_(loader.function<int(int*, int, int)>(library, "cuDeviceGetAttribute")),
        version_(loader.function<int(int*)>(library, "cuDriverGetVersion")),
        error_(loader.function<int(int, const char**)>(library, "cuGetErrorString")) {}

  [[nodiscard]] bool complete() const {
    return init_ != nullptr && count_ != nullptr && get_ != nullptr && name_ != nullptr && attribute_ != nullptr;
  }

  [[nodiscard]] Version cuda() const {
    int version = 0;  // 13020 is 13.2
    if (version_ == nullptr || version_(&version) != kSuccess || version <= 0) return {};
    return {static_cast<unsigned>(version / 1000), static_cast<unsigned>(version % 1000 / 10)};
  }

  /// Whether this process has called cuInit: all functions fail before, and cuDeviceGetCount has no side effects.
  [[nodiscard]] bool initialized() const {
    int count = 0;
    return count_(&count) == kSuccess;
  }

  /// Fills `gpus`; the reason when that fails.
  [[nodiscard]] std::string list(std::vector<Gpu>& gpus) const {
    int count = 0;
    if (const int error = init_(0); error != kSuccess) return failure("cuInit", error);
    if (const int error = count_(&count); error != kSuccess) return failure("cuDeviceGetCount", error);
    if (count == 0) return "the CUDA driver has no device";
    for (int i = 0; i < count; ++i)
      if (std::string why_not = add(i, gpus); !why_not.empty()) return why_not;
    return {};
  }

 private:
  [[nodiscard]] std::string add(int index, std::vector<Gpu>& gpus) const {
    int device = 0;
    if (const int error = get_(&device, index); error != kSuccess) return failure("cuDeviceGet", error);
    std::array<char, 256> name{};
    if (const int error = name_(name.data(), static_cast<int>(name.size()) - 1, device); error != kSuccess)
      return failure("cuDeviceGetName", error);
    std::array<int, 3> values{};
    constexpr std::array attributes{kComputeCapabilityMajor, kComputeCapabilityMinor, kMultiprocessorCount};
    for (std::size_t i = 0; i < values.size(); ++i)
      if (const int error = attribute_(&values.at(i), attributes.at(i), device); error != kSuccess)
        return failure("cuDeviceGetAttribute", error);
    gpus.push_back({.name = name.data(),
                    .sm = static_cast<unsigned>(10 * values[0] + values[1]),
                    .sm_count = static_cast<unsigned>(values[2])});
    return {};
  }

  /// "cuInit: error 100 (no CUDA-capable device is detected)"
  [[nodiscard]] std::string failure(const char* function, int error) const {
    std::string message = std::string(function) + ": error " + std::to_string(error);
    const char* text = nullptr;
    if (error_ != nullptr && error_(error, &text) == kSuccess && text != nullptr)
      message += std::string(" (") + text + ")";
    return message;
  }

  int (*init_)(unsigned);
  int (*count_)(int*);
  int (*get_)(int*, int);
  int (*name_)(char*, int, int);
  int (*attribute_)(int*, int, int);
  int (*version_)(int*);
  int (*error_)(int, const char**);
};

}  // namespace

FoundGpus find_gpus(const Loader& loader) {
  std::string error;
  void* const library = loader.open("libcuda.so.1", error);
  if (library == nullptr) {
    // The loader's own text is kept only where it says more than that the file is absent.
    const bool absent = error.find("No such file") != std::string::npos;
    return {.gpus = {}, .why_not = absent ? "libcuda.so.1 not found" : error, .cuda = {}};
  }
  const Driver driver(loader, library);
  FoundGpus found{.gpus = {}, .why_not = "libcuda.so.1 lacks functions that list devices", .cuda = driver.cuda()};
  if (!driver.complete()) return found;
  if (!driver.initialized()) {
    if (std::optional<FoundGpus> certain = ask_nvml(loader)) {
      certain->cuda = found.cuda;
      return *std::move(certain);
    }
  }
  found.why_not = driver.list(found.gpus);
  if (!found.why_not.empty()) found.gpus.clear();
  return found;
}

}  // namespace cynosure::detect
