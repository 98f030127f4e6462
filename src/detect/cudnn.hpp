// SPDX-License-Identifier: Apache-2.0
// detect/cudnn.hpp: the version of the cuDNN that this process runs, or would run.
//
// The truth is cudnnGetVersion() of the library itself: wheel metadata and headers can differ from it. The order of
// the search is the order in which a later user of cuDNN would find it:
//   1. the library that is loaded already, whoever loaded it (torch's CUDA library does): a second copy would not be
//      used;
//   2. the candidates given, such as the one in the wheel that torch was installed with;
//   3. the loader's own search path.
// A library that is not loaded yet is opened apart. Measured with 9.19 and 9.26: cudnnGetVersion loads
// libcudnn_graph.so.9, which stays when libcudnn.so.9 is closed. Left in the process, it would be the part that another
// cuDNN, which torch brings when it is imported later, binds to.
#pragma once

#include <span>
#include <string>

#include <cynosure/package_version.hpp>

#include "detect/loader.hpp"

namespace cynosure::detect {

struct FoundCudnn {
  Version version;
  std::string path;     ///< the library's file
  std::string why_not;  ///< what was tried and how it failed; "" when found
};

/// `candidates`: paths of libcudnn.so.N, best first.
[[nodiscard]] FoundCudnn find_cudnn(std::span<const std::string> candidates, const Loader& loader = system_loader());

}  // namespace cynosure::detect
