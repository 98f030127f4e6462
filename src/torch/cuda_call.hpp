// SPDX-License-Identifier: Apache-2.0
// torch/cuda_call.hpp: what backends on CUDA devices share.
#pragma once

#include <cmath>
#include <cstdint>

#include "torch/arguments.hpp"

namespace cynosure::torch_abi {

/// Makes a device the current one while it lives.
class OnDevice {
 public:
  explicit OnDevice(std::int32_t device) {
    std::int32_t current = -1;
    ok(aoti_torch_get_current_device_index(&current), "the current device");
    if (current != device) ok(aoti_torch_create_device_guard(device, &guard_), "another device");
  }
  ~OnDevice() {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

/// Fused kernels multiply masked scores, which are -inf, with the scale: NaN unless it is positive. So its sign goes
/// into q.
inline double sign_of_scale(const Arguments& a) { return a.scale > 0 ? 1.0 : a.scale < 0 ? -1.0 : 0.0; }
inline double size_of_scale(const Arguments& a) { return a.scale == 0 ? 1.0 : std::abs(a.scale); }

/// The outputs are zeros, without any kernel.
inline bool nothing_to_do(const Arguments& a) {
  return a.q.numel() == 0 || a.k.numel() == 0 || a.sizes.batch == 0 || a.sizes.seqlen_q == 0 || a.sizes.seqlen_k == 0;
}

}  // namespace cynosure::torch_abi
