// SPDX-License-Identifier: Apache-2.0
// torch/absent/run_cudnn.cpp: stands in for run_cudnn.cpp where the headers of cudnn-frontend were not found.
#include <stdexcept>

#include "torch/backend.hpp"

namespace cynosure::torch_abi {

bool cudnn_is_built() { return false; }
Version cudnn_version() { return {}; }
ForwardResult forward_cudnn(const Arguments& /*a*/) { throw std::logic_error("cynosure: cudnn is not built"); }
BackwardResult backward_cudnn(const Arguments& /*a*/, const BackwardInputs& /*in*/) {
  throw std::logic_error("cynosure: cudnn is not built");
}

}  // namespace cynosure::torch_abi
