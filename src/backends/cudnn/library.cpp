// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/library.cpp
#include "backends/cudnn/library.hpp"

#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "detect/loader.hpp"

namespace cynosure::cudnn {
namespace {

constexpr const char* kName = "libcudnn.so.9";

Library find(const std::string& beside) {
  const detect::Loader& loader = detect::system_loader();
  Library found;
  found.handle = loader.loaded(kName);
  std::string error;
  if (found.handle == nullptr && !beside.empty()) found.handle = loader.open(beside, error);
  if (found.handle == nullptr) found.handle = loader.open(kName, error);
  if (found.handle == nullptr) {
    found.why_not = error;
    return found;
  }
  auto* const version = loader.function<std::size_t()>(found.handle, "cudnnGetVersion");
  const std::size_t number = version != nullptr ? version() : 0;
  found.number = static_cast<std::int32_t>(number);
  found.version = Version::from_cudnn_integer(static_cast<std::uint32_t>(number));
  if (!found.version.installed()) {
    found.handle = nullptr;
    found.why_not = std::string(kName) + ": cudnnGetVersion says nothing";
  }
  return found;
}

using CudnnStatus = int;

struct CudnnFunctions {
  CudnnStatus (*create)(void** handle) = nullptr;
  CudnnStatus (*set_stream)(void* handle, Stream stream) = nullptr;
  const char* (*text)(CudnnStatus status) = nullptr;
};
const CudnnFunctions& cudnn_functions() {
  static const CudnnFunctions functions = [] {
    const detect::Loader& loader = detect::system_loader();
    void* const handle = library().handle;
    if (handle == nullptr) throw std::runtime_error("cynosure: cudnn: " + library().why_not);
    return CudnnFunctions{.create = loader.function<int(void**)>(handle, "cudnnCreate"),
                          .set_stream = loader.function<int(void*, Stream)>(handle, "cudnnSetStream"),
                          .text = loader.function<const char*(int)>(handle, "cudnnGetErrorString")};
  }();
  return functions;
}

void check_cudnn(CudnnStatus status, const char* what) {
  if (status != 0)
    throw std::runtime_error(std::string("cynosure: cudnn: ") + what + ": " + cudnn_functions().text(status));
}

struct Handle {
  std::int32_t device = 0;
  void* handle = nullptr;
  Stream stream = nullptr;
};

/// Handles of threads that ended, for those to come. Never destroyed: at exit the driver may be gone before us.
struct Pool {
  std::mutex mutex;
  std::vector<Handle> free;
};
Pool& pool() {
  static Pool* const pool = new Pool;  // NOLINT(cppcoreguidelines-owning-memory)
  return *pool;
}

/// The handles of one thread.
class Handles {
 public:
  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    const std::lock_guard lock(pool().mutex);
    pool().free.insert(pool().free.end(), mine_.begin(), mine_.end());
  }

  void* on(std::int32_t device, Stream stream) {
    Handle& handle = of(device);
    if (handle.stream != stream) {
      check_cudnn(cudnn_functions().set_stream(handle.handle, stream), "cudnnSetStream");
      handle.stream = stream;
    }
    return handle.handle;
  }

 private:
  Handle& of(std::int32_t device) {
    for (Handle& handle : mine_)
      if (handle.device == device) return handle;
    {
      const std::lock_guard lock(pool().mutex);
      std::vector<Handle>& free = pool().free;
      for (std::size_t i = 0; i < free.size(); ++i)
        if (free[i].device == device) {
          mine_.push_back(free[i]);
          free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
          return mine_.back();
        }
    }
    Handle made{.device = device, .handle = nullptr, .stream = nullptr};
    check_cudnn(cudnn_functions().create(&made.handle), "cudnnCreate");
    return mine_.emplace_back(made);
  }

  std::vector<Handle> mine_;
};

}  // namespace

const Library& library(const std::string& beside) {
  static const Library found = find(beside);
  return found;
}

const Driver& driver() {
  static const Driver found = [] {
    const detect::Loader& loader = detect::system_loader();
    Driver d;
    std::string error;
    void* const library = loader.open("libcuda.so.1", error);
    if (library == nullptr) return d;
    const auto load = [&]<class Function>(Function*& function, const char* name) {
      function = loader.function<Function>(library, name);
      return function != nullptr;
    };
    d.complete = load(d.launch, "cuLaunchKernel") && load(d.load_module, "cuModuleLoadData") &&
                 load(d.get_function, "cuModuleGetFunction") && load(d.is_capturing, "cuStreamIsCapturing") &&
                 load(d.retain_context, "cuDevicePrimaryCtxRetain") && load(d.set_context, "cuCtxSetCurrent") &&
                 load(d.get_context, "cuCtxGetCurrent") && load(d.error_text, "cuGetErrorString");
    return d;
  }();
  return found;
}

void check_driver(int error, const char* what) {
  if (error == 0) return;
  const char* text = nullptr;
  if (driver().error_text != nullptr) driver().error_text(error, &text);
  throw std::runtime_error(std::string("cynosure: cudnn: ") + what + ": " +
                           (text != nullptr ? text : "error " + std::to_string(error)));
}

void enter(std::int32_t device) {
  if (!driver().complete) throw std::runtime_error("cynosure: cudnn: libcuda.so.1 lacks functions that are needed");
  void* context = nullptr;
  check_driver(driver().get_context(&context), "cuCtxGetCurrent");
  if (context != nullptr) return;
  check_driver(driver().retain_context(&context, device), "cuDevicePrimaryCtxRetain");
  check_driver(driver().set_context(context), "cuCtxSetCurrent");
}

bool is_capturing(Stream stream) {
  int status = 0;
  check_driver(driver().is_capturing(stream, &status), "cuStreamIsCapturing");
  return status != 0;
}

void* handle_for(std::int32_t device, Stream stream) {
  thread_local Handles handles;
  return handles.on(device, stream);
}

}  // namespace cynosure::cudnn
