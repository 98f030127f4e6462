// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/library.hpp: cuDNN and the CUDA driver as found in this process. Nothing of either is linked, so that
// this code loads, and says why it cannot run, on any machine.
#pragma once

#include <cstdint>
#include <string>

#include <cynosure/package_version.hpp>

namespace cynosure::cudnn {

struct Library {
  void* handle = nullptr;   ///< of libcudnn.so.9; null: not found
  std::int32_t number = 0;  ///< cudnnGetVersion()
  Version version;
  std::string why_not;
};

/// The library that is loaded already (torch's CUDA part brings it), else the one at `beside`, else by name. Looked for
/// once; `beside` counts at the first call.
[[nodiscard]] const Library& library(const std::string& beside = {});

/// A CUstream.
using Stream = void*;

/// Makes the device's context current in a thread that has none: the driver's functions need one, and a thread gets it
/// with its first call of the CUDA runtime, which may not have been yet. Throws std::runtime_error.
void enter(std::int32_t device);

/// Whether the stream is being captured into a CUDA graph. Throws std::runtime_error where the driver cannot say.
[[nodiscard]] bool is_capturing(Stream stream);

/// A handle of cuDNN for this thread and device, on this stream. The device must be the current one. Throws
/// std::runtime_error with cuDNN's text.
[[nodiscard]] void* handle_for(std::int32_t device, Stream stream);

/// The CUDA driver's functions that are used here.
struct Driver {
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                Stream stream, void** parameters, void** extra) = nullptr;
  int (*load_module)(void** module, const void* image) = nullptr;
  int (*get_function)(void** function, void* module, const char* name) = nullptr;
  int (*is_capturing)(Stream stream, int* status) = nullptr;
  int (*retain_context)(void** context, int device) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*get_context)(void** context) = nullptr;
  int (*error_text)(int error, const char** text) = nullptr;
  bool complete = false;
};
[[nodiscard]] const Driver& driver();
/// Throws what a call of the driver failed with.
void check_driver(int error, const char* what);

}  // namespace cynosure::cudnn
