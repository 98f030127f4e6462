// SPDX-License-Identifier: Apache-2.0
// backends/cpu/kernels.hpp: the table of functions that each instruction set fills in.
//
// One generic algorithm (forward.hpp, backward.hpp over tile.hpp, row.hpp and score.hpp) is compiled once for each
// instruction set, over its page of primitives (isa_*.cpp). Only these tables leave such a file: all else in it has
// internal linkage, so that the linker cannot hand code for one processor to another.
#pragma once

#include <cstdint>

#include "backends/cpu/plan.hpp"

namespace cynosure::cpu {

struct Kernels {
  CpuIsa isa;
  /// Sizes that suit the registers and caches.
  Blocks (*forward_blocks)(const Attention& call);
  Blocks (*backward_blocks)(const Attention& call);

  /// Runs one task of a pass; tasks of a pass are independent. `scratch`: the calling thread's own.
  using Forward = void (*)(const ForwardPlan& plan, std::int64_t task, char* scratch);
  using Backward = void (*)(const BackwardPlan& plan, std::int64_t task, char* scratch);
  Forward forward_head;             ///< by heads
  Forward pack_keys, forward_part;  ///< in parts, one pass after the other
  Forward forward_split, combine_splits;
  Backward backward_head;
  Backward prepare_part, backward_part, finish_part;
  /// One tile of the gradient of a term (term_tiles()), after the passes in parts.
  void (*term_gradient)(const BackwardPlan& plan, const TermGradient& gradient, std::int64_t task, char* scratch);
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

/// The best kernels in this build up to `isa`. In kernels_x86.cpp or kernels_portable.cpp, by architecture.
[[nodiscard]] const Kernels& kernels(CpuIsa isa);

}  // namespace cynosure::cpu
