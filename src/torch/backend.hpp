// SPDX-License-Identifier: Apache-2.0
// torch/backend.hpp: what each backend offers to the operators.
#pragma once

#include "torch/arguments.hpp"

namespace cynosure::torch_abi {

struct ForwardResult {
  Tensor out;          ///< as `new_out` makes it
  OptionalTensor lse;  ///< as `new_lse` makes it
};

struct BackwardInputs {
  Tensor grad_out;
  OptionalTensor grad_lse;
  Tensor out, lse;
};
struct BackwardResult {
  Tensor dq, dk, dv;                    ///< dense, in the order of memory of `new_out`
  OptionalTensor dbias, dmask, dsinks;  ///< where the options ask for them
};

/// Uninitialised [B, Sq, H, D] in the call's layout. Memory: sbhd and thd as the letters say, bshd and bhsd both as
/// [B, S, H, D], so that joining heads and head dim needs no copy.
[[nodiscard]] Tensor new_out(const Arguments& arguments);
/// The same for a gradient of `like` (q, k or v).
[[nodiscard]] Tensor new_like(const Arguments& arguments, const Tensor& like);
/// Float32 [B, H, Sq], thd: [H, T] (in memory [T, H], as fused kernels have it); nothing where nobody wants it.
[[nodiscard]] OptionalTensor new_lse(const Arguments& arguments);

[[nodiscard]] ForwardResult forward_cpu(const Arguments& arguments);
[[nodiscard]] BackwardResult backward_cpu(const Arguments& arguments, const BackwardInputs& inputs);
[[nodiscard]] ForwardResult forward_unfused(const Arguments& arguments);
[[nodiscard]] BackwardResult backward_unfused(const Arguments& arguments, const BackwardInputs& inputs);

[[nodiscard]] ForwardResult forward_aten_flash(const Arguments& arguments);
[[nodiscard]] BackwardResult backward_aten_flash(const Arguments& arguments, const BackwardInputs& inputs);

[[nodiscard]] ForwardResult forward_cudnn(const Arguments& arguments);
[[nodiscard]] BackwardResult backward_cudnn(const Arguments& arguments, const BackwardInputs& inputs);
/// Whether this build has the code of `cudnn`, and the cuDNN of this process: not installed where there is none.
[[nodiscard]] bool cudnn_is_built();
[[nodiscard]] Version cudnn_version();

}  // namespace cynosure::torch_abi
