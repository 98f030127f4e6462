// SPDX-License-Identifier: Apache-2.0
// detect/nvml.cpp
#include "detect/nvml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace cynosure::detect {
namespace {

// From nvml.h.
struct NvmlDevice;
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr const char* kOrder = "CUDA_DEVICE_ORDER";

struct AllGpus {
  std::vector<Gpu> gpus;
  std::vector<std::string> uuids;
};

/// NVML, initialised for the life of this object.
class Nvml {
 public:
  Nvml(const Loader& loader, void* library) {
    if (library == nullptr) return;
    shutdown_ = loader.function<int()>(library, "nvmlShutdown");
    count_ = loader.function<int(unsigned*)>(library, "nvmlDeviceGetCount_v2");
    get_ = loader.function<int(unsigned, NvmlDevice**)>(library, "nvmlDeviceGetHandleByIndex_v2");
    name_ = loader.function<int(NvmlDevice*, char*, unsigned)>(library, "nvmlDeviceGetName");
    uuid_ = loader.function<int(NvmlDevice*, char*, unsigned)>(library, "nvmlDeviceGetUUID");
    capability_ = loader.function<int(NvmlDevice*, int*, int*)>(library, "nvmlDeviceGetCudaComputeCapability");
    cores_ = loader.function<int(NvmlDevice*, unsigned*)>(library, "nvmlDeviceGetNumGpuCores");  // since driver 470
    mig_ = loader.function<int(NvmlDevice*, unsigned*, unsigned*)>(library, "nvmlDeviceGetMigMode");
    auto* const init = loader.function<int()>(library, "nvmlInit_v2");
    started_ = init != nullptr && shutdown_ != nullptr && init() == kSuccess;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (started_) shutdown_();
  }

  /// Every GPU in the order of the bus; nothing when one of them does not tell all, or is split by MIG.
  [[nodiscard]] std::optional<AllGpus> all() const {
    unsigned count = 0;
    if (!started_ || !complete() || count_(&count) != kSuccess || count == 0) return std::nullopt;
    AllGpus all;
    for (unsigned i = 0; i < count; ++i)
      if (!add(i, all)) return std::nullopt;
    return all;
  }

 private:
  [[nodiscard]] bool complete() const {
    return count_ != nullptr && get_ != nullptr && name_ != nullptr && uuid_ != nullptr && capability_ != nullptr &&
           cores_ != nullptr && mig_ != nullptr;
  }

  [[nodiscard]] bool add(unsigned index, AllGpus& all) const {
    NvmlDevice* device = nullptr;
    if (get_(index, &device) != kSuccess) return false;
    unsigned mig = 0;
    unsigned pending_mig = 0;
    const int mig_error = mig_(device, &mig, &pending_mig);
    if (mig_error != kNotSupported && (mig_error != kSuccess || mig != 0)) return false;
    std::array<char, 96> name{};
    std::array<char, 96> uuid{};
    int major = 0;
    int minor = 0;
    unsigned cores = 0;
    if (name_(device, name.data(), name.size()) != kSuccess || uuid_(device, uuid.data(), uuid.size()) != kSuccess ||
        capability_(device, &major, &minor) != kSuccess || cores_(device, &cores) != kSuccess)
      return false;
    const auto sm = static_cast<unsigned>(10 * major + minor);
    const unsigned each = cores_per_multiprocessor(sm);
    if (each == 0 || cores == 0 || cores % each != 0) return false;
    all.gpus.push_back({.name = name.data(), .sm = sm, .sm_count = cores / each});
    all.uuids.emplace_back(uuid.data());
    return true;
  }

  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*get_)(unsigned, NvmlDevice**) = nullptr;
  int (*name_)(NvmlDevice*, char*, unsigned) = nullptr;
  int (*uuid_)(NvmlDevice*, char*, unsigned) = nullptr;
  int (*capability_)(NvmlDevice*, int*, int*) = nullptr;
  int (*cores_)(NvmlDevice*, unsigned*) = nullptr;
  int (*mig_)(NvmlDevice*, unsigned*, unsigned*) = nullptr;
  bool started_ = false;
};

[[nodiscard]] std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

/// The device that one entry of CUDA_VISIBLE_DEVICES names.
[[nodiscard]] std::optional<std::size_t> device_named(std::string_view entry, const std::vector<std::string>& uuids) {
  if (entry.starts_with("GPU-")) {
    const auto matches = [&](const std::string& uuid) { return uuid.starts_with(entry); };
    if (std::count_if(uuids.begin(), uuids.end(), matches) != 1) return std::nullopt;
    return static_cast<std::size_t>(std::find_if(uuids.begin(), uuids.end(), matches) - uuids.begin());
  }
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc() || end != entry.data() + entry.size() || index >= uuids.size()) return std::nullopt;
  return index;
}

/// Whether the numbers of GPUs mean the same to NVML, which counts along the bus, and to CUDA, which by default puts
/// the fastest first.
[[nodiscard]] bool same_order(const Loader& loader, const std::vector<Gpu>& gpus) {
  const char* const order = loader.variable(kOrder);
  return (order != nullptr && std::string_view(order) == "PCI_BUS_ID") ||
         std::all_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu == gpus.front(); });
}

}  // namespace

std::optional<std::vector<std::size_t>> visible_devices(std::string_view variable,
                                                        const std::vector<std::string>& uuids) {
  std::vector<std::size_t> devices;
  if (trimmed(variable).empty()) return devices;
  while (true) {
    const std::size_t comma = variable.find(',');
    const std::string_view entry = trimmed(variable.substr(0, comma));
    if (entry == "-1") return devices;  // hides what follows
    const std::optional<std::size_t> device = device_named(entry, uuids);
    if (!device || std::find(devices.begin(), devices.end(), *device) != devices.end()) return std::nullopt;
    devices.push_back(*device);
    if (comma == std::string_view::npos) return devices;
    variable.remove_prefix(comma + 1);
  }
}

std::optional<FoundGpus> ask_nvml(const Loader& loader) {
  std::string error;
  const Nvml nvml(loader, loader.open("libnvidia-ml.so.1", error));
  std::optional<AllGpus> all = nvml.all();
  if (!all || !same_order(loader, all->gpus)) return std::nullopt;
  const char* const variable = loader.variable(kVisible);
  if (variable == nullptr) return FoundGpus{.gpus = std::move(all->gpus), .why_not = {}, .cuda = {}};
  const std::optional<std::vector<std::size_t>> visible = visible_devices(variable, all->uuids);
  if (!visible) return std::nullopt;
  FoundGpus found;
  for (const std::size_t device : *visible) found.gpus.push_back(all->gpus[device]);
  if (found.gpus.empty()) found.why_not = std::string(kVisible) + "=\"" + variable + "\" hides every GPU";
  return found;
}

}  // namespace cynosure::detect
